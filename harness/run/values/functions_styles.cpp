// The styles of tensor_parallel. A style is a map with the key `style` and the arguments that are given; placements are
// texts, as everywhere in the language. harness/run/verbs/style_arguments.cpp reads it.
#include "harness/run/values/functions.hpp"

namespace lockstep::run::functions {

namespace {

// The style with those of the arguments that the call gives. The first `num_positional` may be given by position.
Value style(const CallArguments& call, std::initializer_list<std::string_view> arguments,
            std::size_t num_positional = 0) {
  Map made{{Key("style"), Value(call.name())}};
  std::size_t position = 0;
  for (const std::string_view name : arguments) {
    const Value* given = position < num_positional ? call.find(position, name) : call.keyword(name);
    if (given) made.emplace_back(Key(std::string(name)), *given);
    ++position;
  }
  return Value::map(std::move(made));
}

}  // namespace

Value colwise(const CallArguments& call) { return style(call, {"input", "output", "keep_sharded"}); }
Value rowwise(const CallArguments& call) { return style(call, {"input", "output", "keep_sharded"}); }
Value sequence_parallel(const CallArguments& call) { return style(call, {"dim", "keep_sharded"}); }
Value prepare_input(const CallArguments& call) {
  return style(call, {"given", "wanted", "named_given", "named_wanted", "keep_sharded"}, 2);
}
Value prepare_output(const CallArguments& call) { return style(call, {"given", "wanted", "keep_sharded"}, 2); }

}  // namespace lockstep::run::functions
