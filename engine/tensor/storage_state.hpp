// The words of Storage::state that decide an error's remedy. All other states are for messages only.
#pragma once

#include <string_view>

namespace lockstep {

// The model that would have attached the memory again is gone.
inline constexpr std::string_view state_model_dropped = "its model was dropped";
// Begins the state of a storage whose tensor has given way to one of the type that follows.
inline constexpr std::string_view state_cast_to = "cast to ";

}  // namespace lockstep
