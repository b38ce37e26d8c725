// Views: new sizes, strides and offset over the same storage.
#include <algorithm>
#include <optional>

#include "engine/core/error.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep {

namespace {

Tensor view_of(const Tensor& tensor, const Dims& sizes, const Dims& strides, std::int64_t offset) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = tensor.storage();
  impl->sizes = sizes;
  impl->strides = strides;
  impl->offset = offset;
  impl->dtype = tensor.dtype();
  return Tensor(std::move(impl));
}

// Replaces -1 by the size that follows from the number of elements.
Dims resolve_sizes(const Tensor& tensor, const Dims& sizes) {
  Dims out = sizes;
  int unknown = -1;
  std::int64_t known = 1;
  for (int dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == -1) {
      if (unknown >= 0) throw Error(str("view: sizes ", to_text(sizes), " contain -1 twice"), "give -1 once at most");
      unknown = dim;
    } else if (sizes[dim] < 0) {
      throw Error(str("view: size ", sizes[dim], " at dim ", dim, " of ", to_text(sizes)),
                  "give sizes of 0 or more, or one -1");
    } else {
      known = checked_multiply(known, sizes[dim], "view");
    }
  }
  const std::int64_t count = tensor.num_elements();
  if (unknown >= 0 && known == 0) {
    throw Error(str("view: sizes ", to_text(sizes), ": -1 is ambiguous when another size is 0"),
                "give all sizes of an empty tensor");
  }
  if (unknown >= 0) {
    if (count % known != 0) {
      throw Error(
          str("view: ", count, " elements of ", to_text(tensor.sizes()), " do not divide into ", to_text(sizes)),
          str("give other sizes whose product divides ", count));
    }
    out[unknown] = count / known;
  } else if (known != count) {
    throw Error(str("view: sizes ", to_text(sizes), " hold ", known, " elements, the tensor ", to_text(tensor.sizes()),
                    " holds ", count),
                str("give sizes whose product is ", count, ", or one -1"));
  }
  return out;
}

// The strides with which `sizes` gives the same elements in the same order, if such strides exist. Adjacent dims with
// uniform spacing in memory form a run, and the new sizes must split each run exactly.
std::optional<Dims> strides_for(const Tensor& tensor, const Dims& sizes) {
  if (tensor.num_elements() == 0) return contiguous_strides(sizes);
  const Dims& old_sizes = tensor.sizes();
  const Dims& old_strides = tensor.strides();
  Dims strides(sizes.size(), 1);
  int next = sizes.size() - 1;
  int dim = tensor.num_dims() - 1;
  while (dim >= 0) {
    if (old_sizes[dim] == 1) {
      --dim;
      continue;
    }
    const std::int64_t base = old_strides[dim];
    std::int64_t run = old_sizes[dim];
    int before = dim - 1;
    for (; before >= 0; --before) {
      if (old_sizes[before] == 1) continue;
      if (old_strides[before] != bounded_product(base, run)) break;
      run = bounded_product(run, old_sizes[before]);
    }
    std::int64_t covered = 1;
    while (next >= 0 && (covered < run || sizes[next] == 1)) {
      strides[next] = bounded_product(base, covered);
      covered = bounded_product(covered, sizes[next]);
      --next;
    }
    if (covered != run) return std::nullopt;
    dim = before;
  }
  return strides;
}

}  // namespace

Tensor view(const Tensor& tensor, const Dims& sizes) {
  const Dims resolved = resolve_sizes(tensor, sizes);
  const std::optional<Dims> strides = strides_for(tensor, resolved);
  if (!strides) {
    throw Error(str("view: a tensor of ", to_text(tensor.sizes()), " with strides ", to_text(tensor.strides()),
                    " cannot be viewed as ", to_text(resolved), " without a copy"),
                "use reshape, which copies if necessary");
  }
  return view_of(tensor, resolved, *strides, tensor.offset());
}

bool is_viewable_as(const Tensor& tensor, const Dims& sizes) {
  return strides_for(tensor, resolve_sizes(tensor, sizes)).has_value();
}

Tensor transpose(const Tensor& tensor, int dim0, int dim1) {
  const int first = normalize_dim(dim0, tensor.num_dims(), "transpose");
  const int second = normalize_dim(dim1, tensor.num_dims(), "transpose");
  Dims sizes = tensor.sizes(), strides = tensor.strides();
  if (tensor.num_dims() > 0) {
    std::swap(sizes[first], sizes[second]);
    std::swap(strides[first], strides[second]);
  }
  return view_of(tensor, sizes, strides, tensor.offset());
}

Tensor permute(const Tensor& tensor, const Dims& order) {
  const auto refuse = [&](const std::string& why) {
    throw Error(str("permute: order ", to_text(order), " for a tensor of ", to_text(tensor.sizes()), ": ", why),
                str("name each of the ", tensor.num_dims(), " dims once"));
  };
  if (order.size() != tensor.num_dims()) refuse(str(order.size(), " dims are named"));
  Dims sizes, strides;
  unsigned seen = 0;
  for (std::int64_t wanted : order) {
    const int dim = normalize_dim(wanted, tensor.num_dims(), "permute");
    if ((seen >> dim) & 1u) refuse(str("dim ", dim, " is named twice"));
    seen |= 1u << dim;
    sizes.push_back(tensor.sizes()[dim]);
    strides.push_back(tensor.strides()[dim]);
  }
  return view_of(tensor, sizes, strides, tensor.offset());
}

Tensor slice(const Tensor& tensor, int dim, std::int64_t begin, std::int64_t end) {
  if (tensor.num_dims() == 0) throw Error("slice: a scalar has no dim to slice", "unsqueeze it first");
  const int at = normalize_dim(dim, tensor.num_dims(), "slice");
  const std::int64_t size = tensor.sizes()[at];
  const auto clamp = [size](std::int64_t index) {
    return std::clamp<std::int64_t>(index < 0 ? index + size : index, 0, size);
  };
  const std::int64_t from = clamp(begin);
  const std::int64_t to = std::max(from, clamp(end));
  Dims sizes = tensor.sizes();
  sizes[at] = to - from;
  return view_of(tensor, sizes, tensor.strides(), tensor.offset() + bounded_product(from, tensor.strides()[at]));
}

Tensor select(const Tensor& tensor, int dim, std::int64_t index) {
  if (tensor.num_dims() == 0) throw Error("select: a scalar has no dim to select from", "use the scalar itself");
  const int at = normalize_dim(dim, tensor.num_dims(), "select");
  const std::int64_t size = tensor.sizes()[at];
  if (index < -size || index >= size) {
    throw Error(str("select: index ", index, " is out of range at dim ", at, " of ", to_text(tensor.sizes())),
                size > 0 ? str("use -", size, " to ", size - 1) : std::string("the dim is empty"));
  }
  Dims sizes = tensor.sizes(), strides = tensor.strides();
  const std::int64_t offset = tensor.offset() + bounded_product(index < 0 ? index + size : index, strides[at]);
  sizes.erase(at);
  strides.erase(at);
  return view_of(tensor, sizes, strides, offset);
}

Tensor expand(const Tensor& tensor, const Dims& sizes) {
  const int added = sizes.size() - tensor.num_dims();
  if (added < 0) {
    throw Error(str("expand: ", to_text(tensor.sizes()), " to ", to_text(sizes), " has fewer dims"),
                str("give ", tensor.num_dims(), " sizes or more"));
  }
  Dims out = sizes;
  Dims strides(sizes.size(), 0);
  for (int dim = 0; dim < sizes.size(); ++dim) {
    const std::int64_t size = dim < added ? -2 : tensor.sizes()[dim - added];
    if (sizes[dim] == -1) out[dim] = size;
    if (out[dim] < 0) {
      throw Error(str("expand: size ", sizes[dim], " at dim ", dim, " of ", to_text(sizes)),
                  "use -1 only for dims that the tensor has");
    }
    if (size == out[dim]) {
      strides[dim] = tensor.strides()[dim - added];
    } else if (size >= 0 && size != 1) {
      throw Error(
          str("expand: ", to_text(tensor.sizes()), " to ", to_text(sizes), ": dim ", dim, " is ", size, ", not 1"),
          "only sizes of 1 can be expanded");
    }
  }
  checked_bytes(out, size_of(tensor.dtype()), "expand");
  return view_of(tensor, out, strides, tensor.offset());
}

Tensor squeeze(const Tensor& tensor, int dim) {
  const int at = normalize_dim(dim, tensor.num_dims(), "squeeze");
  Dims sizes = tensor.sizes(), strides = tensor.strides();
  if (tensor.num_dims() > 0 && sizes[at] == 1) {
    sizes.erase(at);
    strides.erase(at);
  }
  return view_of(tensor, sizes, strides, tensor.offset());
}

Tensor unsqueeze(const Tensor& tensor, int dim) {
  const int at = normalize_dim(dim, tensor.num_dims() + 1, "unsqueeze");
  Dims sizes = tensor.sizes(), strides = tensor.strides();
  const std::int64_t stride = at < tensor.num_dims() ? bounded_product(sizes[at], strides[at]) : 1;
  sizes.insert(at, 1);
  strides.insert(at, stride);
  return view_of(tensor, sizes, strides, tensor.offset());
}

Tensor as_strided(const Tensor& tensor, const Dims& sizes, const Dims& strides, std::int64_t offset) {
  const auto refuse = [&](const std::string& why, std::string remedy) {
    throw Error(
        str("as_strided: sizes ", to_text(sizes), ", strides ", to_text(strides), ", offset ", offset, ": ", why),
        std::move(remedy));
  };
  if (sizes.size() != strides.size()) refuse("their numbers differ", "give one stride per size");
  if (offset < 0) refuse("the offset is negative", "give an offset from the start of the storage");
  std::int64_t end = checked_add(offset, 1, "as_strided");
  for (int dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] < 0 || strides[dim] < 0)
      refuse(str("dim ", dim, " is negative"), "give sizes and strides of 0 or more");
    end = checked_add(end, checked_multiply(sizes[dim], strides[dim], "as_strided") - strides[dim], "as_strided");
  }
  checked_bytes(sizes, size_of(tensor.dtype()), "as_strided");
  const auto limit = static_cast<std::int64_t>(tensor.storage()->bytes() / size_of(tensor.dtype()));
  if (num_elements(sizes) > 0 && end > limit) {
    refuse(str("the last element is number ", end - 1, ", the storage holds ", limit), "stay inside the storage");
  }
  return view_of(tensor, sizes, strides, offset);
}

Tensor alias(const Tensor& tensor) {
  if (tensor.is_sharded()) return sharded_like(tensor, tensor);
  return view_of(tensor, tensor.sizes(), tensor.strides(), tensor.offset());
}

Tensor local_tensor(const Tensor& tensor) {
  if (!tensor.is_sharded()) return tensor;
  return view_of(tensor, tensor.sizes(), tensor.strides(), tensor.offset());
}

Tensor sharded_like(const Tensor& local, const Tensor& tensor) {
  if (!tensor.is_sharded()) return local;
  LOCKSTEP_CHECK(local.sizes() == tensor.sizes(), "sharded_like: a local shard of ", to_text(local.sizes()),
                 " for a tensor whose local shard is ", to_text(tensor.sizes()));
  return Tensor(std::shared_ptr<TensorImpl>(new TensorImpl(local.impl(), tensor.layout())));
}

}  // namespace lockstep
