// Activations and their derivatives, element by element; floating types. As elementwise.hpp: any strides, the same
// bits, 16-bit types compute in float32 and round once.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

void gelu(Space space, const View& out, const View& a);  // 0.5 x (1 + erf(x / sqrt(2)))
void gelu_backward(Space space, const View& out, const View& grad, const View& a);
void tanh(Space space, const View& out, const View& a);
void tanh_backward(Space space, const View& out, const View& grad, const View& result);
void sigmoid(Space space, const View& out, const View& a);
void sigmoid_backward(Space space, const View& out, const View& grad, const View& result);
void erf(Space space, const View& out, const View& a);

// a * factor where keep, else 0. `keep` is bool; the factor is rounded to the type computed in.
void keep_scaled(Space space, const View& out, const View& a, const View& keep, double factor);

}  // namespace lockstep::kernels
