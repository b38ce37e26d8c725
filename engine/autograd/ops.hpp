// The differentiable operations. Each calls the operation without gradients of the same name (engine/tensor/ops.hpp,
// ops_network.hpp), which defines checks, types and bits, and records its derivative. Only the tensors that backward
// reads are saved. The gradient of an operand has the sizes and type of the operand.
//
// Every operation throws Error for undefined operands, operands on different devices, sizes that do not fit and element
// types that it does not accept ("any type", "numbers" and "floating" as in engine/tensor/ops.hpp; only floating
// operands have gradients). Sharded operands: by the rules of engine/mesh/sharding_rules.hpp, else Error; sizes that
// are given to an operation are then those of the full tensor.
//
//   Tensor loss = ops::mean(ops::pow(ops::sub(ops::linear(x, weight, &bias), y), 2.0));
//   backward({loss});
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/autograd/autograd.hpp"
#include "engine/tensor/loss_options.hpp"
#include "engine/tensor/number.hpp"

namespace lockstep::ops {

// ---- element-wise arithmetic (ops_arithmetic.cpp) ----
// Two tensors of any type: sizes broadcast, the result has raw::result_type(a, b). sub: neither is bool. div: integers
// give float32.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
// A tensor of any type and a number: sizes of the tensor. A floating type stays; an integer type stays beside an
// integer, else the result is float32. div and rdiv of integers give float32.
Tensor add(const Tensor& a, Number b);
Tensor sub(const Tensor& a, Number b);
Tensor rsub(Number a, const Tensor& b);  // a - b
Tensor mul(const Tensor& a, Number b);
Tensor div(const Tensor& a, Number b);
Tensor rdiv(Number a, const Tensor& b);  // (1 / b) * a

// ---- element-wise functions (ops_functions.cpp): sizes and type of `a` ----
Tensor neg(const Tensor& a);                   // numbers
Tensor sqrt(const Tensor& a);                  // floating
Tensor rsqrt(const Tensor& a);                 // floating; 1 / sqrt(a)
Tensor exp(const Tensor& a);                   // floating
Tensor log(const Tensor& a);                   // floating
Tensor abs(const Tensor& a);                   // numbers; derivative 0 at 0
Tensor relu(const Tensor& a);                  // numbers; derivative 0 at 0
Tensor pow(const Tensor& a, Number exponent);  // any type; integers give float32 unless the exponent is an integer >= 0

// ---- products (ops_product.cpp): floating operands of one type, which is the type of the result ----
// (..., m, k) x (..., k, n) -> (..., m, n) with leading dims that broadcast; a vector (k) counts as a row on the left,
// as a column on the right, and its dim is removed.
Tensor matmul(const Tensor& a, const Tensor& b);
// x @ weight^T + bias: x (..., in), weight (out, in), bias (out) or null -> (..., out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor* bias);

// ---- reductions and indexing (ops_reduce.cpp) ----
// sum: any type; integers and bool give int64. mean: floating. Without dims: a scalar. With dims: they are removed, or
// become 1 with keep_dims; negative ones count from the end; Error for a repeated dim.
Tensor sum(const Tensor& a);
Tensor sum(const Tensor& a, const Dims& dims, bool keep_dims);
Tensor mean(const Tensor& a);
Tensor mean(const Tensor& a, const Dims& dims, bool keep_dims);
// The mean of (input - target)^2, a scalar. input: floating; target: the same sizes.
Tensor mse_loss(const Tensor& input, const Tensor& target);
// The elements of `a` (any type) at positions `index` (int64 or int32, at most one dim) of the dim; throws Error for a
// position out of range. Gradients of an element that is selected several times are added in the order of `index`.
Tensor index_select(const Tensor& a, int dim, const Tensor& index);

// ---- activations, embedding, norms (ops_network.cpp): floating; sizes and type of the first operand ----
Tensor gelu(const Tensor& a);  // the exact form with erf
Tensor tanh(const Tensor& a);
Tensor sigmoid(const Tensor& a);
// The rows of `weight` (n, d) at `indices` (int64 or int32, any sizes): (indices..., d); throws Error for an index out
// of range. Gradients of a row that is used several times are added in the order of the indices.
Tensor embedding(const Tensor& weight, const Tensor& indices);
// Normalize over the last `num_dims` dims (1 or more). weight and bias have the sizes of these dims and the type of x,
// or are null.
Tensor layer_norm(const Tensor& x, int num_dims, const Tensor* weight, const Tensor* bias, double eps = 1e-5);
Tensor rms_norm(const Tensor& x, int num_dims, const Tensor* weight, double eps = 1e-6);

// ---- batch norm and convolution (ops_convolution.cpp): floating ----
// Normalizes x (batch, channels, ...) per channel; the four tensors are (channels) or null. Training uses the
// statistics of the batch (at least two values per channel, else Error) and moves the running statistics towards them
// by `momentum`, the variance with divisor count - 1. Evaluation uses the running statistics; Error when they are null.
Tensor batch_norm(const Tensor& x, const Tensor* weight, const Tensor* bias, const Tensor* running_mean,
                  const Tensor* running_var, bool training, double momentum = 0.1, double eps = 1e-5);
// x (batch, in, height, width), weight (out, in, kernel height, kernel width), bias (out) or null, of one type; stride
// and padding (height, width) -> (batch, out, out height, out width). Error when the kernel exceeds the padded image.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor* bias, const Dims& stride = {1, 1},
              const Dims& padding = {0, 0});

// ---- comparisons, where, extremes (ops_compare.cpp): any type; only where() has a derivative ----
// Sizes broadcast; the result is bool.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
// a where the bool `condition` is true, else b; all three broadcast; raw::result_type(a, b).
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
// Along one dim, which must have elements; it is removed, or becomes 1 with keep_dim. argmax gives int64, the first of
// equal elements.
Tensor max(const Tensor& a, int dim, bool keep_dim = false);
Tensor min(const Tensor& a, int dim, bool keep_dim = false);
Tensor argmax(const Tensor& a, int dim, bool keep_dim = false);

// ---- softmax, losses, dropout, attention (ops_attention.cpp): floating ----
Tensor softmax(const Tensor& a, int dim);  // sizes and type of `a`
Tensor log_softmax(const Tensor& a, int dim);
// The loss of each row, log(sum(e^x)) - x[target], times the weight of the class of its target; its sum or mean over
// the rows, a scalar, or with Reduction::none the losses in the sizes of the targets. logits (..., classes), targets
// (...) int64. A mean divides by the sum of the weights. Rows whose target is options.ignore_index count as 0, in that
// sum too; a mean over no row is NaN. The weight has no gradient: Error if it requires one. Error without rows or
// classes. Logits with sharded classes are not gathered: three all-reduces of one number per row, none in backward.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const LossOptions& options = {});
// Keeps each element with probability 1 - p, scaled by 1 / (1 - p), and sets the others to 0; `a` itself when not
// training or p is 0. Error for p outside 0 to 1. Draws one number per element, in memory order, from the generator of
// the rank; for a sharded tensor one number per element of the full tensor.
Tensor dropout(const Tensor& a, double p, bool training = true);
// softmax(q k^T / sqrt(d)) v: q (..., queries, d), k (..., keys, d), v (..., keys, dv), of one type, any strides ->
// (..., queries, dv). With `causal`, query i uses keys 0 to i. `mask` (null: none) is bool, broadcasts to the scores
// and is true where a key may be used; a query that may use no key gives zeros. dropout_p applies to the probabilities
// and draws a number for every score, masked ones included.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal = false, double dropout_p = 0.0,
                 const Tensor* mask = nullptr);

// ---- views and copies (ops_shape.cpp): any type; negative dims count from the end ----
// Views share the memory of `a`; see engine/tensor/tensor.hpp.
Tensor view(const Tensor& a, const Dims& sizes);                        // one size may be -1; Error if it needs a copy
Tensor reshape(const Tensor& a, const Dims& sizes);                     // a view where possible, else a copy
Tensor flatten(const Tensor& a, int first_dim = 0, int last_dim = -1);  // merges these dims, the last one included
Tensor transpose(const Tensor& a, int dim0, int dim1);
Tensor permute(const Tensor& a, const Dims& order);                            // dim i of the result is dim order[i]
Tensor slice(const Tensor& a, int dim, std::int64_t begin, std::int64_t end);  // clamped as in Python
Tensor select(const Tensor& a, int dim, std::int64_t index);                   // removes the dim
Tensor expand(const Tensor& a, const Dims& sizes);  // repeats dims of size 1, adds dims in front
Tensor squeeze(const Tensor& a, int dim);           // removes the dim if its size is 1
Tensor unsqueeze(const Tensor& a, int dim);
// Views of `size` elements along the dim each, the last one smaller if necessary.
std::vector<Tensor> split(const Tensor& a, std::int64_t size, int dim);
// At most `count` views of equal size by ceiling division, the last one smaller if necessary; `count` of an empty dim.
std::vector<Tensor> chunk(const Tensor& a, int count, int dim);
Tensor cat(const std::vector<Tensor>& tensors, int dim);    // sizes equal except at the dim; the promoted type
Tensor stack(const std::vector<Tensor>& tensors, int dim);  // equal sizes; along a new dim
Tensor cast(const Tensor& a, DType dtype);                  // `a` itself when it has the type
Tensor clone(const Tensor& a);                              // a contiguous copy
Tensor contiguous(const Tensor& a);                         // `a` itself when contiguous
Tensor to_device(const Tensor& a, device::Device device);   // `a` itself when it is on the device
Tensor detach(const Tensor& a);                             // the same view without gradient history

// ---- in place (ops_in_place.cpp) ----
// `to` becomes the result of a new node, and so do the tensors that it is a view of (view_history.cpp). `value`
// broadcasts to the sizes of `to`; its type must not be of a later kind (bool, integer, floating). While recording,
// throws Error, before it writes anything, for a leaf that requires a gradient, a view of one, a view that was made
// with gradients off or by an operation with several results, and a view of a sharded tensor. `to` keeps its layout:
// `value` has the same one, or broadcasts to it without communication.
void add_(const Tensor& to, const Tensor& value, double alpha = 1.0);  // to += alpha * value
void add_(const Tensor& to, Number value);
void sub_(const Tensor& to, const Tensor& value);
void sub_(const Tensor& to, Number value);
void mul_(const Tensor& to, const Tensor& value);
void mul_(const Tensor& to, Number value);
void div_(const Tensor& to, const Tensor& value);  // floating `to`
void div_(const Tensor& to, double value);         // floating `to`
void relu_(const Tensor& to);
void copy_(const Tensor& to, const Tensor& from);  // also between devices and types
void zero_(const Tensor& to);
void fill_(const Tensor& to, Number value);

// Every operation above. The registry (op_registry.hpp) does not compile unless each has an entry.
inline constexpr std::string_view operation_names[] = {"add",
                                                       "sub",
                                                       "rsub",
                                                       "mul",
                                                       "div",
                                                       "rdiv",
                                                       "neg",
                                                       "sqrt",
                                                       "rsqrt",
                                                       "exp",
                                                       "log",
                                                       "abs",
                                                       "relu",
                                                       "pow",
                                                       "matmul",
                                                       "linear",
                                                       "sum",
                                                       "mean",
                                                       "mse_loss",
                                                       "index_select",
                                                       "gelu",
                                                       "tanh",
                                                       "sigmoid",
                                                       "embedding",
                                                       "layer_norm",
                                                       "rms_norm",
                                                       "batch_norm",
                                                       "conv2d",
                                                       "eq",
                                                       "ne",
                                                       "lt",
                                                       "le",
                                                       "gt",
                                                       "ge",
                                                       "where",
                                                       "max",
                                                       "min",
                                                       "argmax",
                                                       "softmax",
                                                       "log_softmax",
                                                       "cross_entropy",
                                                       "dropout",
                                                       "attention",
                                                       "view",
                                                       "reshape",
                                                       "flatten",
                                                       "transpose",
                                                       "permute",
                                                       "slice",
                                                       "select",
                                                       "expand",
                                                       "squeeze",
                                                       "unsqueeze",
                                                       "split",
                                                       "chunk",
                                                       "cat",
                                                       "stack",
                                                       "cast",
                                                       "clone",
                                                       "contiguous",
                                                       "to_device",
                                                       "detach",
                                                       "add_",
                                                       "sub_",
                                                       "mul_",
                                                       "div_",
                                                       "relu_",
                                                       "copy_",
                                                       "zero_",
                                                       "fill_"};

}  // namespace lockstep::ops
