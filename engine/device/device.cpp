#include "engine/device/device.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/capabilities.hpp"

namespace lockstep::device {

namespace {
constexpr std::array<std::string_view, num_purposes> purpose_names = {
    "parameter", "gradient", "gathered", "activation", "optimizer", "communication", "other"};

}  // namespace

std::string to_text(Device device) {
  return capabilities_of(device).has_index ? str(name_of(device.kind), ":", device.index)
                                           : std::string(name_of(device.kind));
}

Device device_from_name(std::string_view name) {
  const std::size_t colon = name.find(':');
  Device device{kind_from_name(name.substr(0, colon)), 0};
  if (colon == std::string_view::npos) {
    const RankContext* context = RankContext::current_or_null();
    if (capabilities_of(device).has_index && context != nullptr) device.index = context->rank();
    return device;
  }
  const std::string_view digits = name.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), device.index);
  if (error != std::errc{} || end != digits.data() + digits.size() || device.index < 0) {
    throw Error(str("device `", name, "`: `", digits, "` is not an index"),
                "write a number after the colon, as in sim:1");
  }
  if (!capabilities_of(device).has_index && device.index != 0) {
    throw Error(str("device `", name, "`: a rank has only one ", name_of(device.kind), " device"),
                str("write ", name_of(device.kind)));
  }
  return device;
}

std::string_view name_of(Purpose purpose) { return purpose_names[static_cast<std::size_t>(purpose)]; }

Purpose purpose_from_name(std::string_view name) {
  const auto found = std::find(purpose_names.begin(), purpose_names.end(), name);
  if (found != purpose_names.end()) return static_cast<Purpose>(found - purpose_names.begin());
  throw Error(str("unknown purpose of memory `", name, "`"),
              "use one of parameter, gradient, gathered, activation, optimizer, communication, other");
}

}  // namespace lockstep::device
