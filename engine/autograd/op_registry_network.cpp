// Registry entries of activations, norms, softmax, losses, dropout and attention.
#include <algorithm>
#include <limits>

#include "engine/autograd/op_registry_internal.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::ops {

namespace {

OpVariant one_input(std::string text, Dims sizes, const std::function<Tensor(const Tensor&)>& run,
                    const std::function<Plain(const Plain&)>& reference, double low = -1.5, double high = 1.5) {
  return {std::move(text),
          {{sizes, low, high, {}}},
          [run](const Inputs& in) { return run(in[0]); },
          [reference](const Plains& in) { return reference(in[0]); }};
}

template <class Run, class F>
OpCase activation_case(std::string_view name, Run run, F f) {
  OpCase op{.name = name};
  op.tolerance = 4.0;
  const auto variant = [&](std::string text, Dims sizes, double low = -1.5, double high = 1.5) {
    return one_input(
        std::move(text), sizes, run, [f](const Plain& a) { return map(a, f); }, low, high);
  };
  op.variants = {variant("matrix", {3, 43}),    variant("wide range", {5, 31}, -6.0, 6.0),
                 variant("scalar", {}),         variant("one element", {1, 1}),
                 variant("no element", {2, 0}), variant("four dims", {2, 3, 2, 4})};
  op.timed = variant("timed", {1 << 20});
  return op;
}

OpInput index_input(const std::vector<std::int64_t>& indices, Dims sizes) {
  OpInput index{sizes};
  index.indices = indices;
  return index;
}

// Reshapes to (rows, length), where a row spans the last `num_dims` dims.
Plain as_rows(const Plain& a, int num_dims) {
  std::int64_t length = 1;
  for (int dim = a.sizes.size() - num_dims; dim < a.sizes.size(); ++dim) length = bounded_product(length, a.sizes[dim]);
  return resized(a, {static_cast<std::int64_t>(a.values.size()) / std::max<std::int64_t>(1, length), length});
}

OpVariant norm_variant(std::string text, bool centred, Dims sizes, int num_dims, bool weight, bool bias) {
  Dims row;
  for (int dim = sizes.size() - num_dims; dim < sizes.size(); ++dim) row.push_back(sizes[dim]);
  std::vector<OpInput> inputs = {{sizes}};
  if (weight) inputs.push_back({row});
  if (bias) inputs.push_back({row});
  return {std::move(text), inputs,
          [=](const Inputs& in) {
            const Tensor* const w = weight ? &in[1] : nullptr;
            const Tensor* const b = bias ? &in.back() : nullptr;
            return centred ? ops::layer_norm(in[0], num_dims, w, b) : ops::rms_norm(in[0], num_dims, w);
          },
          [=](const Plains& in) {
            const Plain rows = as_rows(in[0], num_dims);
            const std::int64_t length = rows.sizes[1];
            const double count = static_cast<double>(length), eps = centred ? 1e-5 : 1e-6;
            return resized(build(rows.sizes,
                                 [&](const Dims& at) {
                                   double mean = 0.0, squares = 0.0;
                                   if (centred)
                                     for (std::int64_t i = 0; i < length; ++i) mean += rows.at({at[0], i}) / count;
                                   for (std::int64_t i = 0; i < length; ++i) {
                                     const double off = rows.at({at[0], i}) - mean;
                                     squares += off * off;
                                   }
                                   const auto column = static_cast<std::size_t>(at[1]);
                                   double result = (rows.at(at) - mean) / std::sqrt(squares / count + eps);
                                   if (weight) result *= in[1].values[column];
                                   if (bias) result += in.back().values[column];
                                   return result;
                                 }),
                           sizes);
          }};
}

double log_sum_of(const Plain& a, Dims at, int dim) {
  double sum = 0.0;
  for (at[dim] = 0; at[dim] < a.sizes[dim]; ++at[dim]) sum += std::exp(a.at(at));
  return std::log(sum);
}

OpCase softmax_like_case(std::string_view name, bool logarithm) {
  OpCase op{.name = name};
  op.tolerance = 8.0;
  const auto variant = [&](std::string text, Dims sizes, int dim, double range = 1.5) {
    return one_input(
        std::move(text), sizes,
        [=](const Tensor& a) { return logarithm ? ops::log_softmax(a, dim) : ops::softmax(a, dim); },
        [=](const Plain& a) {
          const int on = dim < 0 ? dim + a.sizes.size() : dim;
          return build(a.sizes, [&](const Dims& at) {
            const double result = a.at(at) - log_sum_of(a, at, on);
            return logarithm ? result : std::exp(result);
          });
        },
        -range, range);
  };
  op.variants = {variant("last dim", {3, 19}, -1),  variant("first dim", {9, 4}, 0),
                 variant("middle", {2, 7, 3}, 1),   variant("wide range", {2, 12}, 1, 10.0),
                 variant("one element", {1, 1}, 1), variant("no row", {0, 3}, 1)};
  // Compares the first columns of a long row, because a sum over the row would hide differences.
  op.variants.push_back(one_input(
      "two blocks", {2, 1500},
      [=](const Tensor& a) { return ops::slice(logarithm ? ops::log_softmax(a, 1) : ops::softmax(a, 1), 1, 0, 6); },
      [=](const Plain& a) {
        return build({2, 6}, [&](const Dims& at) {
          const double result = a.at(at) - log_sum_of(a, at, 1);
          return logarithm ? result : std::exp(result);
        });
      }));
  op.timed = variant("timed", {2048, 512}, -1);
  return op;
}

// softmax(q k^T / sqrt(width)) v, with the probabilities multiplied by `factors` (empty: 1). `allowed(query, key)`:
// mask.
Plain attention_reference(const Plain& q, const Plain& k, const Plain& v, bool causal,
                          const std::vector<double>& factors,
                          const std::function<bool(std::int64_t, std::int64_t)>& allowed) {
  const int n = q.sizes.size();
  const std::int64_t queries = q.sizes[n - 2], keys = k.sizes[n - 2], width = q.sizes[n - 1];
  Dims sizes = q.sizes;
  sizes[n - 1] = v.sizes[n - 1];
  return build(sizes, [&](const Dims& at) {
    std::int64_t batch = 0;
    for (int dim = 0; dim < n - 2; ++dim) batch = bounded_product(batch, q.sizes[dim]) + at[dim];
    const std::int64_t query = at[n - 2];
    double sum = 0.0, result = 0.0;
    for (std::int64_t key = 0; key < keys; ++key) {
      if ((causal && key > query) || !allowed(query, key)) continue;
      Dims of_q = at, of_k = at, of_v = at;
      of_k[n - 2] = of_v[n - 2] = key;
      double score = 0.0;
      for (std::int64_t i = 0; i < width; ++i) {
        of_q[n - 1] = of_k[n - 1] = i;
        score += q.at(of_q) * k.at(of_k);
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(width)));
      sum += weight;
      const auto position = static_cast<std::size_t>((batch * queries + query) * keys + key);
      result += weight * v.at(of_v) * (factors.empty() ? 1.0 : factors[position]);
    }
    return sum == 0.0 ? 0.0 : result / sum;
  });
}

// The factors of dropout, drawn as the operation draws them.
std::vector<double> drawn_factors(std::int64_t count, double p) {
  Generator generator;
  generator.seed(11);
  std::vector<double> factors(static_cast<std::size_t>(count));
  for (double& factor : factors) factor = generator.keep(p) ? 1.0 / (1.0 - p) : 0.0;
  return factors;
}
void seed_rank() { RankContext::current().generator().seed(11); }

OpVariant attention_variant(std::string text, Dims q, Dims k, Dims v, bool causal, double p = 0.0) {
  return {std::move(text),
          {{q}, {k}, {v}},
          [=](const Inputs& in) {
            seed_rank();
            return ops::attention(in[0], in[1], in[2], causal, p);
          },
          [=](const Plains& in) {
            const std::int64_t width = q.back();
            const std::int64_t scores = width == 0 ? 0 : bounded_product(num_elements(q) / width, k[k.size() - 2]);
            return attention_reference(in[0], in[1], in[2], causal,
                                       p > 0.0 ? drawn_factors(scores, p) : std::vector<double>(),
                                       [](std::int64_t, std::int64_t) { return true; });
          }};
}

}  // namespace

OpCase gelu_case() {
  return activation_case(
      "gelu", [](const Tensor& a) { return ops::gelu(a); },
      [](double x) { return 0.5 * x * (1.0 + std::erf(x * std::sqrt(0.5))); });
}
OpCase tanh_case() {
  return activation_case(
      "tanh", [](const Tensor& a) { return ops::tanh(a); }, [](double x) { return std::tanh(x); });
}
OpCase sigmoid_case() {
  return activation_case(
      "sigmoid", [](const Tensor& a) { return ops::sigmoid(a); }, [](double x) { return 1.0 / (1.0 + std::exp(-x)); });
}

OpCase embedding_case() {
  OpCase op{.name = "embedding", .types = OpTypes::all};
  op.tolerance = 4.0;
  const auto variant = [](std::string text, Dims weight, std::vector<std::int64_t> indices, Dims sizes) {
    return OpVariant{std::move(text),
                     {{weight}, index_input(indices, sizes)},
                     [](const Inputs& in) { return ops::embedding(in[0], in[1]); },
                     [=](const Plains& in) {
                       Dims out = sizes;
                       out.push_back(weight[1]);
                       return build(out, [&](const Dims& at) {
                         std::int64_t place = 0;
                         for (int dim = 0; dim < sizes.size(); ++dim)
                           place = bounded_product(place, sizes[dim]) + at[dim];
                         return in[0].at({indices[static_cast<std::size_t>(place)], at[sizes.size()]});
                       });
                     }};
  };
  std::vector<std::int64_t> many;
  for (std::int64_t i = 0; i < 4096; ++i) many.push_back(i * 7919 % 1024);
  op.variants = {variant("tokens", {5, 3}, {4, 0, 2, 4, 4, 1}, {2, 3}), variant("one dim", {4, 6}, {3, 3, 0}, {3}),
                 variant("one token", {2, 3}, {1}, {}), variant("one by one", {1, 1}, {0}, {1, 1})};
  op.timed = variant("timed", {1024, 512}, many, {32, 128});
  return op;
}

OpCase layer_norm_case() {
  OpCase op{.name = "layer_norm"};
  op.tolerance = 32.0;
  op.variants = {norm_variant("weight and bias", true, {4, 19}, 1, true, true),
                 norm_variant("weight", true, {2, 3, 8}, 1, true, false),
                 norm_variant("plain", true, {3, 40}, 1, false, false),
                 norm_variant("bias", true, {3, 5}, 1, false, true),
                 norm_variant("two dims", true, {5, 3, 4}, 2, true, true),
                 norm_variant("two blocks", true, {1, 1030}, 1, true, false),
                 norm_variant("many rows", true, {70, 3}, 1, true, true),
                 norm_variant("no row", true, {0, 4}, 1, true, true)};
  op.timed = norm_variant("timed", true, {2048, 512}, 1, true, true);
  return op;
}
OpCase rms_norm_case() {
  OpCase op{.name = "rms_norm"};
  op.tolerance = 32.0;
  op.variants = {
      norm_variant("weight", false, {4, 19}, 1, true, false), norm_variant("plain", false, {2, 3, 8}, 1, false, false),
      norm_variant("two dims", false, {5, 3, 4}, 2, true, false),
      norm_variant("one element", false, {1}, 1, true, false), norm_variant("no row", false, {0, 4}, 1, true, false)};
  op.timed = norm_variant("timed", false, {2048, 512}, 1, true, false);
  return op;
}

OpCase softmax_case() { return softmax_like_case("softmax", false); }
OpCase log_softmax_case() { return softmax_like_case("log_softmax", true); }

// One variant of the loss over classes. `options` are those of the call, without the weight.
struct LossVariant {
  std::string name;
  Dims rows;
  std::int64_t classes;
  LossOptions options{};
  bool weighted = false;

  std::vector<std::int64_t> targets() const {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < num_elements(rows); ++i)
      all.push_back(options.ignore_index && i % 3 == 1 ? *options.ignore_index : i * 7 % classes);
    return all;
  }
  // The loss of one row times its weight, and the weight.
  std::pair<double, double> of_row(const Plains& in, std::int64_t row, std::int64_t target) const {
    if (target == options.ignore_index) return {0.0, 0.0};
    const Plain flat = resized(in[0], {num_elements(rows), classes});
    const double weight = weighted ? in[2].at({target}) : 1.0;
    return {weight * (log_sum_of(flat, {row, 0}, 1) - flat.at({row, target})), weight};
  }
  Plain reference(const Plains& in) const {
    Plain each{rows, {}};
    double sum = 0.0, total = 0.0;
    const std::vector<std::int64_t> at = targets();
    for (std::size_t row = 0; row < at.size(); ++row) {
      const auto [loss, weight] = of_row(in, static_cast<std::int64_t>(row), at[row]);
      each.values.push_back(loss);
      sum += loss;
      total += weight;
    }
    if (options.reduction == Reduction::none) return each;
    return {{}, {options.reduction == Reduction::sum ? sum : sum / total}};
  }
  OpVariant made() const {
    Dims logits = rows;
    logits.push_back(classes);
    std::vector<OpInput> inputs = {{logits, -3.0, 3.0, {}}, index_input(targets(), rows)};
    if (weighted) {
      inputs.push_back({{classes}, 0.3, 2.0, {}});
      inputs.back().constant = true;
    }
    return {name, inputs,
            [*this](const Inputs& in) {
              LossOptions given = options;
              if (weighted) given.weight = in[2];
              return ops::cross_entropy(in[0], in[1], given);
            },
            [*this](const Plains& in) { return reference(in); }};
  }
};

OpCase cross_entropy_case() {
  OpCase op{.name = "cross_entropy"};
  op.tolerance = 8.0;
  constexpr Reduction sum = Reduction::sum, none = Reduction::none;
  op.variants = {LossVariant{"classes", {5}, 9}.made(),
                 LossVariant{"one row", {1}, 4}.made(),
                 LossVariant{"two blocks", {3}, 1200}.made(),
                 LossVariant{"one class", {2}, 1}.made(),
                 LossVariant{"row of targets", {}, 6}.made(),
                 LossVariant{"batch", {2, 3}, 7}.made(),
                 LossVariant{"sum", {4}, 6, {.reduction = sum}}.made(),
                 LossVariant{"none", {4}, 6, {.reduction = none}}.made(),
                 LossVariant{"none of one row", {1}, 6, {.reduction = none}}.made(),
                 LossVariant{"none of a batch", {2, 3}, 7, {.reduction = none}}.made(),
                 LossVariant{"weighted", {5}, 7, {}, true}.made(),
                 LossVariant{"weighted batch", {3, 2}, 7, {}, true}.made(),
                 LossVariant{"weighted sum", {2, 3}, 5, {.reduction = sum}, true}.made(),
                 LossVariant{"weighted none", {2, 3}, 5, {.reduction = none}, true}.made(),
                 LossVariant{"ignored", {7}, 6, {.ignore_index = -100}}.made(),
                 LossVariant{"ignored class", {7}, 6, {.ignore_index = 3}}.made(),
                 LossVariant{"ignored sum", {7}, 6, {.reduction = sum, .ignore_index = 700}}.made(),
                 LossVariant{"ignored none", {2, 3}, 6, {.reduction = none, .ignore_index = -100}, true}.made(),
                 LossVariant{"ignored weighted", {2, 3}, 6, {.ignore_index = -1}, true}.made()};
  op.timed = LossVariant{"timed", {2048}, 512}.made();
  return op;
}

OpCase dropout_case() {
  OpCase op{.name = "dropout"};
  op.draws_in_memory_order = true;
  const auto variant = [](std::string text, Dims sizes, double p, bool training) {
    return one_input(
        std::move(text), sizes,
        [=](const Tensor& a) {
          seed_rank();
          return ops::dropout(a, p, training);
        },
        [=](const Plain& a) {
          if (!training) return a;
          Plain out = a;
          const std::vector<double> factors = drawn_factors(num_elements(sizes), p);
          for (std::size_t i = 0; i < factors.size(); ++i) out.values[i] *= factors[i];
          return out;
        });
  };
  op.variants = {variant("a tenth", {7, 9}, 0.1, true), variant("half", {3, 5, 2}, 0.5, true),
                 variant("evaluation", {3, 5}, 0.5, false), variant("one element", {1}, 0.3, true),
                 variant("no element", {0, 3}, 0.3, true)};
  op.variants.push_back(one_input(
      "all", {4, 3}, [](const Tensor& a) { return ops::dropout(a, 1.0); },
      [](const Plain& a) { return map(a, [](double) { return 0.0; }); }));
  op.timed = variant("timed", {1 << 18}, 0.1, true);
  op.tolerance = 2.0;
  return op;
}

OpCase attention_case() {
  OpCase op{.name = "attention", .strides_keep_bits = false};
  op.tolerance = 16.0;
  op.variants = {attention_variant("heads", {2, 3, 5, 4}, {2, 3, 5, 4}, {2, 3, 5, 4}, false),
                 attention_variant("causal", {2, 2, 6, 4}, {2, 2, 6, 4}, {2, 2, 6, 4}, true),
                 attention_variant("dropout", {1, 2, 6, 4}, {1, 2, 6, 4}, {1, 2, 6, 4}, true, 0.3),
                 attention_variant("more keys", {2, 3, 4}, {2, 7, 4}, {2, 7, 5}, true),
                 attention_variant("one token", {1, 1, 1, 2}, {1, 1, 1, 2}, {1, 1, 1, 2}, true),
                 attention_variant("long", {1, 3, 8}, {1, 1100, 8}, {1, 1100, 3}, false),
                 attention_variant("no batch", {0, 2, 3, 4}, {0, 2, 3, 4}, {0, 2, 3, 4}, true)};
  // Queries that may use every other key, and one that may use none.
  OpVariant masked = attention_variant("masked", {2, 4, 3}, {2, 4, 3}, {2, 4, 3}, false);
  const auto seen = [](std::int64_t query, std::int64_t key) { return query != 2 && (query + key) % 2 == 0; };
  masked.run = [seen](const Inputs& in) {
    std::vector<double> values;
    for (std::int64_t query = 0; query < 4; ++query)
      for (std::int64_t key = 0; key < 4; ++key) values.push_back(seen(query, key) ? 1.0 : 0.0);
    const Tensor mask = beside(in[0], from_values(values, {4, 4}, DType::boolean, in[0].device()));
    return ops::attention(in[0], in[1], in[2], false, 0.0, &mask);
  };
  masked.reference = [seen](const Plains& in) { return attention_reference(in[0], in[1], in[2], false, {}, seen); };
  op.variants.push_back(masked);
  const Dims large = {8, 8, 128, 64};
  op.timed = attention_variant("timed", large, large, large, true);
  op.flops = 4.0 * 8 * 8 * 128 * 128 * 64;
  return op;
}

}  // namespace lockstep::ops
