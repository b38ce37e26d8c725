// Registry entries of views and copies.
#include <algorithm>

#include "engine/autograd/op_registry_internal.hpp"

namespace lockstep::ops {

namespace {

const Dims large = {1024, 1024};

template <class Run, class Reference>
OpVariant one_input(std::string text, Dims sizes, Run run, Reference reference) {
  return {std::move(text),
          {{sizes}},
          [run](const Inputs& in) { return run(in[0]); },
          [reference](const Plains& in) { return reference(in[0]); }};
}

// The order of the elements stays.
template <class Run>
OpVariant reshaping(std::string text, Dims from, Dims to, Run run) {
  return one_input(std::move(text), from, run, [to](const Plain& a) { return resized(a, to); });
}

Plain same(const Plain& a) { return a; }

OpCase shape_case(std::string_view name) { return {.name = name, .types = OpTypes::all, .any_length = false}; }

}  // namespace

OpCase view_case() {
  OpCase op = shape_case("view");
  op.any_strides = false;
  const auto variant = [](std::string text, Dims from, Dims to, Dims asked) {
    return reshaping(std::move(text), from, to, [asked](const Tensor& a) { return ops::view(a, asked); });
  };
  op.variants = {variant("split", {6, 4}, {2, 3, 4}, {2, 3, 4}), variant("open size", {2, 3, 4}, {6, 4}, {-1, 4}),
                 variant("no element", {0, 4}, {4, 0}, {4, 0}), variant("one element", {1, 1}, {}, {})};
  op.timed = variant("timed", large, {1 << 20}, {-1});
  return op;
}
OpCase reshape_case() {
  OpCase op = shape_case("reshape");
  const auto variant = [](std::string text, Dims from, Dims to, Dims asked) {
    return reshaping(std::move(text), from, to, [asked](const Tensor& a) { return ops::reshape(a, asked); });
  };
  op.variants = {variant("merge", {2, 3, 4}, {6, 4}, {6, 4}), variant("open size", {4, 6}, {3, 8}, {3, -1}),
                 variant("no element", {0, 4}, {2, 0}, {2, 0}), variant("one element", {1}, {1, 1}, {1, 1})};
  op.variants.push_back(one_input(
      "of a transposed", {3, 4}, [](const Tensor& a) { return ops::reshape(ops::transpose(a, 0, 1), {12}); },
      [](const Plain& a) { return resized(swapped(a, 0, 1), {12}); }));
  op.timed = op.variants.back();
  op.timed.inputs[0].sizes = large;
  op.timed.run = [](const Inputs& in) { return ops::reshape(ops::transpose(in[0], 0, 1), {-1}); };
  return op;
}
OpCase flatten_case() {
  OpCase op = shape_case("flatten");
  const auto variant = [](std::string text, Dims from, Dims to, int first, int last) {
    return reshaping(std::move(text), from, to, [=](const Tensor& a) { return ops::flatten(a, first, last); });
  };
  op.variants = {variant("all", {2, 3, 4}, {24}, 0, -1), variant("from 1", {2, 3, 4}, {2, 12}, 1, -1),
                 variant("first two", {2, 3, 4}, {6, 4}, 0, 1), variant("scalar", {}, {1}, 0, -1),
                 variant("no element", {2, 0, 3}, {2, 0}, 1, 2)};
  op.timed = variant("timed", large, {1 << 20}, 0, -1);
  return op;
}
OpCase transpose_case() {
  OpCase op = shape_case("transpose");
  const auto variant = [](std::string text, Dims sizes, int dim0, int dim1) {
    return one_input(
        std::move(text), sizes, [=](const Tensor& a) { return ops::transpose(a, dim0, dim1); },
        [=](const Plain& a) {
          const int n = a.sizes.size();
          return swapped(a, dim0 < 0 ? dim0 + n : dim0, dim1 < 0 ? dim1 + n : dim1);
        });
  };
  op.variants = {variant("matrix", {3, 4}, 0, 1), variant("last two", {2, 3, 4}, -1, -2),
                 variant("outer", {2, 3, 4}, 0, 2), variant("no element", {0, 3}, 0, 1)};
  op.timed = one_input(
      "timed", large, [](const Tensor& a) { return ops::contiguous(ops::transpose(a, 0, 1)); }, same);
  return op;
}
OpCase permute_case() {
  OpCase op = shape_case("permute");
  const auto variant = [](std::string text, Dims sizes, Dims order) {
    return one_input(
        std::move(text), sizes, [order](const Tensor& a) { return ops::permute(a, order); },
        [order](const Plain& a) {
          Dims out;
          for (const std::int64_t dim : order) out.push_back(a.sizes[static_cast<int>(dim)]);
          return build(out, [&](const Dims& at) {
            Dims from = at;
            for (int dim = 0; dim < at.size(); ++dim) from[static_cast<int>(order[dim])] = at[dim];
            return a.at(from);
          });
        });
  };
  op.variants = {variant("turn", {2, 3, 4}, {1, 2, 0}), variant("identity", {2, 3}, {0, 1}),
                 variant("four dims", {2, 3, 1, 2}, {3, 0, 2, 1}), variant("no element", {0, 2, 3}, {2, 0, 1})};
  op.timed = one_input(
      "timed", {64, 128, 128},
      [](const Tensor& a) {
        return ops::contiguous(ops::permute(a, {1, 0, 2}));
      },
      same);
  return op;
}
OpCase slice_case() {
  OpCase op = shape_case("slice");
  const auto variant = [](std::string text, Dims sizes, int dim, std::int64_t begin, std::int64_t end) {
    return one_input(
        std::move(text), sizes, [=](const Tensor& a) { return ops::slice(a, dim, begin, end); },
        [=](const Plain& a) {
          Dims out = a.sizes;
          out[dim] = std::max<std::int64_t>(0, std::min(end, a.sizes[dim]) - begin);
          return build(out, [&](Dims at) {
            at[dim] += begin;
            return a.at(at);
          });
        });
  };
  op.variants = {variant("rows", {5, 3}, 0, 1, 4), variant("columns", {3, 5}, 1, 2, 5),
                 variant("past the end", {3, 2}, 0, 1, 9), variant("nothing", {3, 2}, 0, 2, 2)};
  op.timed = one_input(
      "timed", large, [](const Tensor& a) { return ops::contiguous(ops::slice(a, 1, 1, 1000)); }, same);
  return op;
}
OpCase select_case() {
  OpCase op = shape_case("select");
  const auto variant = [](std::string text, Dims sizes, int dim, std::int64_t index) {
    return one_input(
        std::move(text), sizes, [=](const Tensor& a) { return ops::select(a, dim, index); },
        [=](const Plain& a) {
          Dims out = a.sizes;
          out.erase(dim);
          return build(out, [&](Dims at) {
            at.insert(dim, index);
            return a.at(at);
          });
        });
  };
  op.variants = {variant("row", {4, 3}, 0, 2), variant("column", {4, 3}, 1, 0), variant("of a vector", {5}, 0, 4)};
  op.timed = one_input(
      "timed", large, [](const Tensor& a) { return ops::contiguous(ops::select(a, 1, 7)); }, same);
  return op;
}
OpCase expand_case() {
  OpCase op = shape_case("expand");
  op.tolerance = 8.0;
  const auto variant = [](std::string text, Dims from, Dims to) {
    return one_input(
        std::move(text), from, [to](const Tensor& a) { return ops::expand(a, to); },
        [to](const Plain& a) { return build(to, [&](const Dims& at) { return a.broadcast_at(at); }); });
  };
  op.variants = {variant("new dim", {3}, {4, 3}), variant("column", {3, 1}, {3, 5}), variant("scalar", {}, {2, 2}),
                 variant("same", {2, 3}, {2, 3})};
  op.timed = one_input(
      "timed", {1024}, [](const Tensor& a) { return ops::contiguous(ops::expand(a, large)); }, same);
  return op;
}
OpCase squeeze_case() {
  OpCase op = shape_case("squeeze");
  const auto variant = [](std::string text, Dims from, Dims to, int dim) {
    return reshaping(std::move(text), from, to, [dim](const Tensor& a) { return ops::squeeze(a, dim); });
  };
  op.variants = {variant("middle", {2, 1, 3}, {2, 3}, 1), variant("last", {4, 1}, {4}, -1),
                 variant("no dim of one", {2, 3}, {2, 3}, 0)};
  op.timed = variant("timed", {1, 1 << 20}, {1 << 20}, 0);
  return op;
}
OpCase unsqueeze_case() {
  OpCase op = shape_case("unsqueeze");
  const auto variant = [](std::string text, Dims from, Dims to, int dim) {
    return reshaping(std::move(text), from, to, [dim](const Tensor& a) { return ops::unsqueeze(a, dim); });
  };
  op.variants = {variant("first", {2, 3}, {1, 2, 3}, 0), variant("last", {2, 3}, {2, 3, 1}, -1),
                 variant("scalar", {}, {1}, 0)};
  op.timed = variant("timed", large, {1024, 1, 1024}, 1);
  return op;
}

OpCase cat_case() {
  OpCase op = shape_case("cat");
  const auto variant = [](std::string text, const std::vector<Dims>& sizes, int dim) {
    OpVariant made;
    made.name = std::move(text);
    for (const Dims& of : sizes) made.inputs.push_back({of});
    made.run = [dim](const Inputs& in) { return ops::cat(in, dim); };
    made.reference = [dim](const Plains& in) {
      Dims out = in[0].sizes;
      out[dim] = 0;
      for (const Plain& a : in) out[dim] += a.sizes[dim];
      return build(out, [&](Dims at) {
        std::size_t of = 0;
        while (at[dim] >= in[of].sizes[dim]) at[dim] -= in[of++].sizes[dim];
        return in[of].at(at);
      });
    };
    return made;
  };
  op.variants = {variant("rows", {{2, 3}, {1, 3}, {4, 3}}, 0), variant("columns", {{2, 3}, {2, 1}}, 1),
                 variant("one", {{2, 3}}, 0), variant("an empty one", {{0, 3}, {2, 3}}, 0)};
  op.timed = variant("timed", {{512, 1024}, {512, 1024}}, 0);
  return op;
}
OpCase stack_case() {
  OpCase op = shape_case("stack");
  const auto variant = [](std::string text, std::size_t count, Dims sizes, int dim) {
    OpVariant made;
    made.name = std::move(text);
    made.inputs.assign(count, {sizes});
    made.run = [dim](const Inputs& in) { return ops::stack(in, dim); };
    made.reference = [dim](const Plains& in) {
      Dims out = in[0].sizes;
      out.insert(dim, static_cast<std::int64_t>(in.size()));
      return build(out, [&](Dims at) {
        const std::size_t of = static_cast<std::size_t>(at[dim]);
        at.erase(dim);
        return in[of].at(at);
      });
    };
    return made;
  };
  op.variants = {variant("first", 3, {2, 3}, 0), variant("last", 2, {2, 3}, 2), variant("scalars", 4, {}, 0)};
  op.timed = variant("timed", 2, {512, 1024}, 0);
  return op;
}

OpCase cast_case() {
  OpCase op = shape_case("cast");
  op.any_length = true;
  const auto variant = [](std::string text, Dims sizes, DType dtype) {
    return one_input(
        std::move(text), sizes, [dtype](const Tensor& a) { return ops::cast(a, dtype); }, same);
  };
  op.variants = {variant("to float64", {3, 5}, DType::float64), variant("to float32", {3, 5}, DType::float32),
                 variant("no element", {0}, DType::float32)};
  op.timed = variant("timed", large, DType::bfloat16);
  return op;
}
OpCase clone_case() {
  OpCase op = shape_case("clone");
  op.any_length = true;
  const auto run = [](const Tensor& a) { return ops::clone(a); };
  op.variants = {one_input("matrix", {3, 5}, run, same), one_input("scalar", {}, run, same),
                 one_input("no element", {0, 2}, run, same)};
  op.timed = one_input("timed", large, run, same);
  return op;
}
OpCase contiguous_case() {
  OpCase op = shape_case("contiguous");
  op.variants = {
      one_input(
          "as it is", {3, 5}, [](const Tensor& a) { return ops::contiguous(a); }, same),
      one_input(
          "of a transposed", {3, 5}, [](const Tensor& a) { return ops::contiguous(ops::transpose(a, 0, 1)); },
          [](const Plain& a) { return swapped(a, 0, 1); })};
  op.timed = op.variants.back();
  op.timed.inputs[0].sizes = large;
  return op;
}
OpCase to_device_case() {
  OpCase op = shape_case("to_device");
  // To another device and back; meta tensors stay.
  const auto run = [](const Tensor& a) {
    if (a.is_meta()) return ops::to_device(a, a.device());
    const bool on_cpu = device::is_host(a.device());
    return ops::to_device(ops::to_device(a, device::device_from_name(on_cpu ? "sim" : "cpu")), a.device());
  };
  op.variants = {one_input("there and back", {3, 5}, run, same), one_input("no element", {0}, run, same)};
  op.timed = one_input("timed", large, run, same);
  return op;
}
OpCase detach_case() {
  OpCase op = shape_case("detach");
  op.differentiable = false;
  op.variants = {one_input(
      "matrix", {3, 5}, [](const Tensor& a) { return ops::detach(a); }, same)};
  op.timed = op.variants.back();
  return op;
}

}  // namespace lockstep::ops
