// Element-wise kernels. `out` and the operands have the same sizes (a broadcast operand has strides of 0); the bits of
// a result do not depend on strides, offset or alignment. 16-bit types compute in float32 and round once. An operand
// may be exactly `out`; it must not overlap it in any other way.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// One type for all three.
void add(Space space, const View& out, const View& a, const View& b);
void sub(Space space, const View& out, const View& a, const View& b);
void mul(Space space, const View& out, const View& a, const View& b);
void div(Space space, const View& out, const View& a, const View& b);  // floating types
void maximum(Space space, const View& out, const View& a, const View& b);
void minimum(Space space, const View& out, const View& a, const View& b);
void add_scaled(Space space, const View& out, const View& a, const View& b, double factor);  // a + factor * b, unfused
void relu_backward(Space space, const View& out, const View& grad, const View& result);

// The number is rounded to the type that is computed in.
void add_number(Space space, const View& out, const View& a, double b);
void mul_number(Space space, const View& out, const View& a, double b);
void div_number(Space space, const View& out, const View& a, double b);   // floating types
void rsub_number(Space space, const View& out, const View& a, double b);  // b - a
void rdiv_number(Space space, const View& out, const View& a, double b);  // b / a, floating types
void pow_number(Space space, const View& out, const View& a,
                double exponent);  // integers: exponent whole, not negative

void neg(Space space, const View& out, const View& a);
void abs(Space space, const View& out, const View& a);
void sign(Space space, const View& out, const View& a);
void relu(Space space, const View& out, const View& a);
// Floating types.
void sqrt(Space space, const View& out, const View& a);
void rsqrt(Space space, const View& out, const View& a);
void exp(Space space, const View& out, const View& a);
void log(Space space, const View& out, const View& a);

// From any type to any type; equal types copy the bits.
void copy(Space space, const View& out, const View& a);
void fill(Space space, const View& out, double value);

}  // namespace lockstep::kernels
