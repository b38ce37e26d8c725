// `==` of the scenario language.
#include <algorithm>

#include "harness/run/values/value.hpp"

namespace lockstep::run {

namespace {

bool equal_maps(const Map& a, const Map& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a) {
    const auto other = std::find_if(b.begin(), b.end(), [&key = key](const auto& entry) { return entry.first == key; });
    if (other == b.end() || !equal(value, other->second)) return false;
  }
  return true;
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  using Kind = Value::Kind;
  if (a.is_tensor() || b.is_tensor()) {
    if (a.is_none() || b.is_none()) return false;
    throw Error(str("a tensor can be compared with none only, not ", describe(a), " with ", describe(b)),
                "use expect_equal, or item() for one element");
  }
  if (a.is_number() && b.is_number()) {
    if (a.kind() == b.kind())
      return a.is(Kind::integer) ? *a.get_if<std::int64_t>() == *b.get_if<std::int64_t>()
                                 : *a.get_if<double>() == *b.get_if<double>();
    const double number = *(a.is(Kind::number) ? a : b).get_if<double>();
    const std::int64_t integer = *(a.is(Kind::integer) ? a : b).get_if<std::int64_t>();
    // Exact for integers that a double cannot represent.
    return number >= -9223372036854775808.0 && number < 9223372036854775808.0 &&
           static_cast<std::int64_t>(number) == integer &&
           static_cast<double>(static_cast<std::int64_t>(number)) == number;
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::none:
      return true;
    case Kind::boolean:
      return *a.get_if<bool>() == *b.get_if<bool>();
    case Kind::text:
      return *a.get_if<std::string>() == *b.get_if<std::string>();
    case Kind::dtype:
      return *a.get_if<DType>() == *b.get_if<DType>();
    case Kind::list: {
      const List& x = a.as_list("list");
      const List& y = b.as_list("list");
      return x.size() == y.size() &&
             std::equal(x.begin(), x.end(), y.begin(), [](const Value& p, const Value& q) { return equal(p, q); });
    }
    case Kind::map:
      return equal_maps(a.as_map("map"), b.as_map("map"));
    case Kind::module:
      return *a.get_if<nn::ModulePtr>() == *b.get_if<nn::ModulePtr>();
    case Kind::optimizer:
      return *a.get_if<OptimizerPtr>() == *b.get_if<OptimizerPtr>();
    case Kind::scaler:
      return *a.get_if<ScalerPtr>() == *b.get_if<ScalerPtr>();
    case Kind::mesh:
      return **a.get_if<MeshPtr>() == **b.get_if<MeshPtr>();
    case Kind::identity:
      return *a.get_if<StorageIdentity>() == *b.get_if<StorageIdentity>();
    case Kind::observation:
      return a.as_observation("a") == b.as_observation("b");
    default:
      throw Error(str(describe(a), " cannot be compared"));
  }
}

}  // namespace lockstep::run
