// The table of device kinds: names, and how their backends open.
#include <array>

#include "engine/core/error.hpp"
#include "engine/device/backend.hpp"
#include "engine/device/cuda/cuda_backend.hpp"
#include "engine/device/host_backend.hpp"
#include "engine/device/meta_backend.hpp"

namespace lockstep::device {

namespace {

void available() {}

struct Row {
  std::string_view name;
  void (*require)();  // throws UnsupportedError when the build lacks the backend
  std::unique_ptr<Backend> (*open)(const RankContext& context);
};

// In the order of Kind.
constexpr std::array<Row, num_kinds> rows = {{
    {"cpu", available, open_cpu},
    {"sim", available, open_sim},
    {"meta", available, open_meta},
    {"cuda", require_cuda, open_cuda},
}};

const Row& row_of(Kind kind) { return rows[static_cast<std::size_t>(kind)]; }

}  // namespace

std::string_view name_of(Kind kind) { return row_of(kind).name; }
void require_available(Kind kind) { row_of(kind).require(); }

std::unique_ptr<Backend> open_backend(Kind kind, const RankContext& context) { return row_of(kind).open(context); }

Kind kind_from_name(std::string_view name) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].name == name) return static_cast<Kind>(i);
  throw Error(str("unknown device `", name, "`"), "one of cpu, sim, meta, cuda");
}

}  // namespace lockstep::device
