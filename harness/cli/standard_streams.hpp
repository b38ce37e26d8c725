// The three standard streams of the program, open or closed at start.
//
// If a stream is closed at start, the next file that is opened gets its number, and console lines would be written to
// that file. A failed write (a full disk, a closed reader) is noticed, so that a command whose output is lost does not
// exit with 0.
//
//   int main() {
//     prepare_standard_streams();
//     const int code = ...;
//     return exit_code_after_output(code);
//   }
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace lockstep::cli {

// Call it before any file is opened. Opens /dev/null in place of each closed stream; writes to a standard output that
// was closed fail. From then on a broken pipe and a file that reaches its size limit are errors of the write, not
// signals.
void prepare_standard_streams();

// Prints "lockstep: text" to standard error. A failed write there is ignored.
void complain(std::string_view text);
// Prints the text of an error with its remedy, also when no memory is left.
void complain(const std::exception& error);
// The same without "lockstep: ", for messages that begin with a place in a file.
void complain_plainly(std::string_view text);

// Whether a write to standard output has failed. Call it soon after the write, while errno holds the reason.
bool output_failed();

// Flushes standard output. When a write to it has failed, reports that once and returns 3 in place of 0 and 77.
int exit_code_after_output(int code);

}  // namespace lockstep::cli
