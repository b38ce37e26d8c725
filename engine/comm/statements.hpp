// What the members of a group must agree on before their next collective of the family tensor_parallel, besides the
// collective itself: the global sizes that each rank takes a plain tensor to be a shard of, or the state of the
// generator from which each rank draws the same mask. A statement sends nothing. Its digest is compared with the
// fingerprint of that collective, and a difference is an error on every member before data moves. Statements after the
// last such collective are not compared.
//
//   comm::add_statement(mesh.group("tp"), layout.sizes, [layout] { return str("x is a shard of ", layout->text()); });
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "engine/comm/process_group.hpp"

namespace lockstep::comm {

// All members make the same statements in the same order between two collectives. `agreed`: the numbers that must be
// equal. `text` describes them; it is called after a difference only, on any thread of the rank.
void add_statement(ProcessGroup& group, std::span<const std::int64_t> agreed, std::function<std::string()> text);

}  // namespace lockstep::comm
