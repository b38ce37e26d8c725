#include "engine/nn/arguments.hpp"

#include <optional>

namespace lockstep::nn {

namespace {

std::string signature(std::string_view called, const std::vector<ArgumentInfo>& declared) {
  std::string text = str(called, "(");
  for (std::size_t i = 0; i < declared.size(); ++i)
    text += str(i ? ", " : "", declared[i].name, declared[i].required ? "" : "=...");
  return text + ")";
}

}  // namespace

Arguments::Arguments(std::string_view called, const std::vector<ArgumentInfo>& declared, const Inputs& given)
    : called_(called), declared_(declared) {
  const auto fail = [&](const std::string& problem) {
    throw Error(str(called, ": ", problem), str("call it as ", signature(called, declared)));
  };
  if (given.positional.size() > declared.size())
    fail(str(given.positional.size(), " arguments given, at most ", declared.size(), " expected"));
  std::vector<std::optional<Structure>> found(declared.size());
  for (std::size_t i = 0; i < given.positional.size(); ++i) found[i] = given.positional[i];
  for (const auto& [name, value] : given.named) {
    std::size_t i = 0;
    while (i < declared.size() && declared[i].name != name) ++i;
    if (i == declared.size()) fail(str("unknown argument `", name, "`"));
    if (found[i]) fail(str("argument `", name, "` is given twice"));
    found[i] = value;
  }
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (!found[i] && declared[i].required) fail(str("argument `", declared[i].name, "` is missing"));
    values_.push_back(found[i] ? *found[i] : declared[i].default_value);
  }
}

const Structure& Arguments::operator[](std::string_view name) const {
  for (std::size_t i = 0; i < declared_.size(); ++i)
    if (declared_[i].name == name) return values_[i];
  throw InternalError(str(called_, " declares no argument `", name, "`"));
}

void Arguments::wrong(std::string_view name, const char* wanted, const Structure& found) const {
  throw Error(str(called_, ": argument `", name, "` is a ", found.kind()), str("give ", wanted));
}

const Tensor& Arguments::tensor(std::string_view name) const {
  const Structure& value = (*this)[name];
  if (!value.is_tensor()) wrong(name, "a tensor", value);
  return value.tensor();
}

std::int64_t Arguments::integer(std::string_view name) const {
  const Structure& value = (*this)[name];
  const auto* integer = value.get_if<std::int64_t>();
  if (!integer) wrong(name, "an integer", value);
  if (*integer < 0) throw Error(str(called_, ": argument `", name, "` is ", *integer), "give 0 or more");
  return *integer;
}

std::int64_t Arguments::size(std::string_view name) const {
  const std::int64_t size = integer(name);
  if (size == 0) throw Error(str(called_, ": argument `", name, "` is 0"), "sizes are at least 1");
  return size;
}

double Arguments::number(std::string_view name) const {
  const Structure& value = (*this)[name];
  if (const auto* number = value.get_if<double>()) return *number;
  if (const auto* integer = value.get_if<std::int64_t>()) return static_cast<double>(*integer);
  wrong(name, "a number", value);
}

bool Arguments::boolean(std::string_view name) const {
  const Structure& value = (*this)[name];
  const auto* boolean = value.get_if<bool>();
  if (!boolean) wrong(name, "true or false", value);
  return *boolean;
}

void require_forward(const Module& module, std::string_view method) {
  if (method == "forward") return;
  std::string known;
  for (const std::string& name : module.methods()) known += str(known.empty() ? "" : ", ", name);
  throw Error(str(module.type(), " has no method `", method, "`"), str("it has ", known));
}

const Tensor& only_input(const Module& module, std::string_view method, const Inputs& inputs) {
  require_forward(module, method);
  if (inputs.positional.size() == 1 && inputs.named.empty() && inputs.positional[0].is_tensor())
    return inputs.positional[0].tensor();
  if (inputs.positional.empty() && inputs.named.size() == 1 && inputs.named[0].first == "x" &&
      inputs.named[0].second.is_tensor())
    return inputs.named[0].second.tensor();
  throw Error(str(module.type(), ".forward: expected one tensor `x`, got ", inputs.positional.size(),
                  " positional and ", inputs.named.size(), " named arguments"),
              str("call it as ", module.type(), "(x)"));
}

}  // namespace lockstep::nn
