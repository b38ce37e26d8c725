#include "harness/run/checks/checks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/autograd/autograd.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/run/checks/host_values.hpp"

namespace lockstep::run {

namespace {

Snapshot plain(const std::string& label, Value value) {
  return Snapshot{label, Tensor(), std::move(value), nullptr, 0};
}

// Copies the local shard of a sharded tensor.
Snapshot snapshot_of(const std::string& label, const Tensor& tensor) {
  if (tensor.is_meta()) throw Error(str(label, " is ", describe(tensor), " and has no values to compare"));
  const device::PurposeScope purpose(device::Purpose::other);
  const NoGrad no_grad;
  return Snapshot{label, raw::clone(local_tensor(tensor)), Value(), tensor.storage().get(), tensor.offset()};
}

std::string entry_label(const std::string& label, const Key& key) { return str(label, "['", key.text, "']"); }

// A parameter, gradient or buffer of a module.
struct ModuleTensor {
  std::string label;
  Tensor tensor;  // undefined for a missing gradient
};

std::vector<ModuleTensor> tensors_of(const std::string& label, const nn::ModulePtr& module, bool gradients) {
  std::vector<ModuleTensor> tensors;
  for (const nn::NamedParameter& entry : nn::named_parameters(module)) {
    const std::string name = str(label, ".", entry.path);
    tensors.push_back({name, entry.tensor()});
    if (gradients) tensors.push_back({name + ".grad", grad(entry.trained())});
  }
  for (const nn::NamedBuffer& entry : nn::named_buffers(module))
    tensors.push_back({str(label, ".", entry.path), entry.tensor()});
  return tensors;
}

std::string layout_text(const Tensor& tensor) {
  return tensor.is_sharded() ? tensor.layout()->text() : str("a plain tensor of sizes ", to_text(tensor.sizes()));
}

void refuse_partial(const std::string& label, const Tensor& tensor) {
  if (!tensor.is_sharded()) return;
  for (const layout::Placement& placement : tensor.layout()->placements)
    if (placement.is_partial())
      throw Error(str(label, " is ", layout_text(tensor), ": a partial value is no value to compare"),
                  "redistribute it first");
}

// Visits two values together and pairs the tensors and plain values in them. The first structural difference becomes
// `mismatch`.
class Pairing {
 public:
  // `keep_full`: also snapshot a full expected tensor when only one shard of it is compared.
  Pairing(bool gradients, bool keep_full) : gradients_(gradients), keep_full_(keep_full) {}
  std::string mismatch;
  std::vector<std::pair<Snapshot, Snapshot>> pairs;

  void walk(const std::string& la, const Value& a, const std::string& lb, const Value& b) {
    if (const Handle* handle = a.get_if<Handle>(); handle && handle->result) return walk(la, *handle->result, lb, b);
    if (const Handle* handle = b.get_if<Handle>(); handle && handle->result) return walk(la, a, lb, *handle->result);
    using Kind = Value::Kind;
    if (a.is(Kind::module) && b.is(Kind::module)) {
      walk_modules(la, *a.get_if<nn::ModulePtr>(), lb, *b.get_if<nn::ModulePtr>());
    } else if (a.is(Kind::list) && b.is(Kind::list)) {
      walk_lists(la, a.as_list(la), lb, b.as_list(lb));
    } else if (a.is(Kind::map) && b.is(Kind::map)) {
      walk_maps(la, a.as_map(la), lb, b.as_map(lb));
    } else if (a.is_tensor() && b.is_tensor()) {
      walk_tensors(la, *a.get_if<Tensor>(), lb, *b.get_if<Tensor>());
    } else if ((a.is_tensor() || a.is_number()) && (b.is_tensor() || b.is_number())) {
      if (const Tensor* tensor = (a.is_tensor() ? a : b).get_if<Tensor>()) {
        refuse_partial(a.is_tensor() ? la : lb, *tensor);
        require_comparable(a.is_tensor() ? b : a, tensor->dtype());
      }
      pairs.emplace_back(leaf(la, a), leaf(lb, b));
    } else if (a.kind() != b.kind() || !comparable(a)) {
      differ(str(la, " is ", describe(a), ", ", lb, " is ", describe(b)));
    } else {
      pairs.emplace_back(plain(la, a), plain(lb, b));
    }
  }

 private:
  static bool comparable(const Value& value) {
    return value.kind() <= Value::Kind::text || value.is(Value::Kind::dtype) || value.is(Value::Kind::identity);
  }
  static Snapshot leaf(const std::string& label, const Value& value) {
    return value.is_tensor() ? snapshot_of(label, *value.get_if<Tensor>()) : plain(label, value);
  }
  void differ(std::string text) {
    if (mismatch.empty()) mismatch = std::move(text);
  }

  // A sharded and a plain tensor are compared on the elements of the local shard.
  void walk_tensors(const std::string& la, const Tensor& a, const std::string& lb, const Tensor& b) {
    refuse_partial(la, a);
    refuse_partial(lb, b);
    const LayoutPtr& left = a.layout();
    const LayoutPtr& right = b.layout();
    const bool fits = left && right ? *left == *right
                      : left        ? left->sizes == b.sizes()
                                    : !right || right->sizes == a.sizes();
    if (!fits) return differ(str(la, " is ", layout_text(a), ", ", lb, " is ", layout_text(b)));
    pairs.emplace_back(snapshot_of(la, right && !left ? local_shard_of(a, *right) : a),
                       snapshot_of(lb, left && !right ? local_shard_of(b, *left) : b));
    if (left && !right && keep_full_) pairs.back().second.full = snapshot_of(lb, b).copy;
  }

  void walk_lists(const std::string& la, const List& a, const std::string& lb, const List& b) {
    if (a.size() != b.size()) return differ(str(la, " has ", a.size(), " items, ", lb, " has ", b.size()));
    if (a.empty()) pairs.emplace_back(plain(la, Value()), plain(lb, Value()));
    for (std::size_t i = 0; i < a.size(); ++i) walk(str(la, "[", i, "]"), a[i], str(lb, "[", i, "]"), b[i]);
  }

  void walk_maps(const std::string& la, const Map& a, const std::string& lb, const Map& b) {
    for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      if (i >= a.size()) return differ(str(lb, " has the key '", b[i].first.text, "', ", la, " does not"));
      if (i >= b.size()) return differ(str(la, " has the key '", a[i].first.text, "', ", lb, " does not"));
      if (!(a[i].first == b[i].first))
        return differ(str("key ", i, " of ", la, " is '", a[i].first.text, "', of ", lb, " '", b[i].first.text, "'"));
    }
    if (a.empty()) pairs.emplace_back(plain(la, Value()), plain(lb, Value()));
    for (std::size_t i = 0; i < a.size(); ++i)
      walk(entry_label(la, a[i].first), a[i].second, entry_label(lb, b[i].first), b[i].second);
  }

  void walk_modules(const std::string& la, const nn::ModulePtr& a, const std::string& lb, const nn::ModulePtr& b) {
    const auto names_of = [](const nn::ModulePtr& module) {
      std::vector<std::string> names;
      for (const nn::NamedParameter& entry : nn::named_parameters(module)) names.push_back(entry.path);
      for (const nn::NamedBuffer& entry : nn::named_buffers(module)) names.push_back(str("buffer ", entry.path));
      return names;
    };
    const std::vector<std::string> mine = names_of(a), theirs = names_of(b);
    for (std::size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i)
      if (i >= mine.size() || i >= theirs.size() || mine[i] != theirs[i])
        return differ(str("name ", i, " of ", la, " is ", i < mine.size() ? mine[i] : "missing", ", of ", lb, " ",
                          i < theirs.size() ? theirs[i] : "missing"));
    const std::vector<ModuleTensor> x = tensors_of(la, a, gradients_), y = tensors_of(lb, b, gradients_);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i].tensor.defined() != y[i].tensor.defined()) {
        const bool first = x[i].tensor.defined();
        differ(str((first ? x : y)[i].label, " is there, ", (first ? y : x)[i].label, " is none"));
      } else if (x[i].tensor.defined()) {
        walk_tensors(x[i].label, x[i].tensor, y[i].label, y[i].tensor);
      }
    }
  }

  bool gradients_;
  bool keep_full_;
};

}  // namespace

void take_snapshots(const std::string& label, const Value& value, bool gradients, std::vector<Snapshot>& out) {
  if (const Handle* handle = value.get_if<Handle>(); handle && handle->result)
    return take_snapshots(label, *handle->result, gradients, out);
  switch (value.kind()) {
    case Value::Kind::module:
      for (const ModuleTensor& item : tensors_of(label, *value.get_if<nn::ModulePtr>(), gradients))
        out.push_back(item.tensor.defined() ? snapshot_of(item.label, item.tensor) : plain(item.label, Value()));
      return;
    case Value::Kind::list: {
      std::size_t i = 0;
      out.push_back(plain(label + " (items)", Value(static_cast<std::int64_t>(value.as_list(label).size()))));
      out.back().is_structure = true;
      for (const Value& item : value.as_list(label)) take_snapshots(str(label, "[", i++, "]"), item, gradients, out);
      return;
    }
    case Value::Kind::map:
      out.push_back(plain(label + " (entries)", Value(static_cast<std::int64_t>(value.as_map(label).size()))));
      out.back().is_structure = true;
      for (const auto& [key, item] : value.as_map(label)) {
        out.push_back(plain(label + " (key)", Value(key.text)));
        out.back().is_structure = true;
        take_snapshots(entry_label(label, key), item, gradients, out);
      }
      return;
    case Value::Kind::tensor:
      refuse_partial(label, *value.get_if<Tensor>());
      out.push_back(snapshot_of(label, *value.get_if<Tensor>()));
      return;
    case Value::Kind::none:
    case Value::Kind::boolean:
    case Value::Kind::integer:
    case Value::Kind::number:
    case Value::Kind::text:
    case Value::Kind::dtype:
      out.push_back(plain(label, value));
      return;
    default:
      throw Error(str(label, " is ", describe(value), " and has no value to compare"));
  }
}

void Checks::add_equal(Site site, const std::string& actual_label, const Value& actual,
                       const std::string& expected_label, const Value& expected, const EqualOptions& options) {
  Pairing pairing(options.gradients, options.of_largest > 0.0);
  pairing.walk(actual_label, actual, expected_label, expected);
  EqualCheck check{std::move(site), options, {}, std::move(pairing.mismatch)};
  for (auto& [a, b] : pairing.pairs) check.pairs.push_back({std::move(a), std::move(b)});
  equal_.push_back(std::move(check));
}

}  // namespace lockstep::run
