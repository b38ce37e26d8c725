// Element-wise kernels.
//
// `out` and the operands have the same sizes; a broadcast operand has strides of 0. The bits of a result do not depend
// on strides, offset or alignment. 16-bit types compute in float32 and round once. An operand may be exactly `out`; it
// must not overlap `out` in any other way. The computation type is float for the 16-bit types and otherwise the type
// itself.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

// out, a and b have one type. Of mul and div, b may also be float32 beside 16-bit types.
void add(Execution on, const View& out, const View& a, const View& b);
void sub(Execution on, const View& out, const View& a, const View& b);
void mul(Execution on, const View& out, const View& a, const View& b);
void div(Execution on, const View& out, const View& a, const View& b);  // floating types
void maximum(Execution on, const View& out, const View& a, const View& b);
void minimum(Execution on, const View& out, const View& a, const View& b);
// a + factor * b with one rounding. The factor is rounded to the type of `a`.
void add_scaled(Execution on, const View& out, const View& a, const View& b, double factor);
void relu_backward(Execution on, const View& out, const View& grad, const View& result);

// out and a have one type. The number of mul, div and rdiv is rounded to the computation type, the others to the type
// of `a`.
void add_number(Execution on, const View& out, const View& a, double b);
void mul_number(Execution on, const View& out, const View& a, double b);
void div_number(Execution on, const View& out, const View& a, double b);   // floating types
void rsub_number(Execution on, const View& out, const View& a, double b);  // b - a
void rdiv_number(Execution on, const View& out, const View& a, double b);  // floating types; 1 / a, rounded, times b
// For integer types the exponent is an integer and not negative. The exponents 3 and -2 of bfloat16 round the square.
void pow_number(Execution on, const View& out, const View& a, double exponent);

// out and a have one type.
void neg(Execution on, const View& out, const View& a);
void abs(Execution on, const View& out, const View& a);
void sign(Execution on, const View& out, const View& a);
void relu(Execution on, const View& out, const View& a);
// Floating types.
void sqrt(Execution on, const View& out, const View& a);
void rsqrt(Execution on, const View& out, const View& a);
void exp(Execution on, const View& out, const View& a);
void log(Execution on, const View& out, const View& a);

// Converts from any type to any type. Equal types copy the bits.
void copy(Execution on, const View& out, const View& a);
void fill(Execution on, const View& out, double value);
// Element i of the only dim gets start + i * step, computed in float64.
void arange(Execution on, const View& out, double start, double step);

}  // namespace lockstep::kernels
