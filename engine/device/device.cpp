#include "engine/device/device.hpp"

#include <array>
#include <charconv>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::device {

namespace {
constexpr std::array<std::string_view, 4> kind_names = {"cpu", "sim", "meta", "cuda"};
constexpr std::array<std::string_view, num_purposes> purpose_names = {
    "parameter", "gradient", "gathered", "activation", "optimizer", "communication", "other"};

bool has_index(Kind kind) { return kind == Kind::sim || kind == Kind::cuda; }
}  // namespace

std::string_view name_of(Kind kind) { return kind_names[static_cast<std::size_t>(kind)]; }

std::string to_text(Device device) {
  return has_index(device.kind) ? str(name_of(device.kind), ":", device.index) : std::string(name_of(device.kind));
}

Kind kind_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kind_names.size(); ++i) {
    if (kind_names[i] == name) return static_cast<Kind>(i);
  }
  throw Error(str("unknown device `", name, "`"), "one of cpu, sim, meta, cuda");
}

Device device_from_name(std::string_view name) {
  const std::size_t colon = name.find(':');
  Device device{kind_from_name(name.substr(0, colon)), 0};
  if (colon == std::string_view::npos) {
    const RankContext* context = RankContext::current_or_null();
    if (has_index(device.kind) && context != nullptr) device.index = context->rank();
    return device;
  }
  const std::string_view digits = name.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), device.index);
  if (error != std::errc{} || end != digits.data() + digits.size() || device.index < 0) {
    throw Error(str("device `", name, "`: `", digits, "` is not an index"),
                "write a number after the colon, as in sim:1");
  }
  if (!has_index(device.kind) && device.index != 0) {
    throw Error(str("device `", name, "`: a rank has only one ", name_of(device.kind), " device"),
                str("write ", name_of(device.kind)));
  }
  return device;
}

void require_available(Kind kind) {
  if (kind == Kind::cuda) {
    throw UnsupportedError("this build has no cuda device",
                           "use sim, or build with a Kokkos that has its Cuda backend");
  }
}

std::string_view name_of(Purpose purpose) { return purpose_names[static_cast<std::size_t>(purpose)]; }

Purpose purpose_from_name(std::string_view name) {
  for (std::size_t i = 0; i < purpose_names.size(); ++i) {
    if (purpose_names[i] == name) return static_cast<Purpose>(i);
  }
  throw Error(str("unknown purpose of memory `", name, "`"),
              "use one of parameter, gradient, gathered, activation, optimizer, communication, other");
}

}  // namespace lockstep::device
