// Activations and their derivatives, element by element.
//
// All views have the same sizes and one floating type. As in elementwise.hpp, strides are free and do not change the
// bits, and 16-bit types compute in float32 and round once. The backward of gelu takes its input, the backward of tanh
// and sigmoid their result.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

void gelu(Execution on, const View& out, const View& a);  // 0.5 x (1 + erf(x / sqrt(2)))
void gelu_backward(Execution on, const View& out, const View& grad, const View& a);
void tanh(Execution on, const View& out, const View& a);
void tanh_backward(Execution on, const View& out, const View& grad, const View& result);
void sigmoid(Execution on, const View& out, const View& a);
void sigmoid_backward(Execution on, const View& out, const View& grad, const View& result);
void erf(Execution on, const View& out, const View& a);

// a * factor where `keep` (bool) is true, otherwise 0. The factor is rounded to the computation type.
void keep_scaled(Execution on, const View& out, const View& a, const View& keep, double factor);

}  // namespace lockstep::kernels
