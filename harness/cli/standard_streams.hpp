// The three standard streams of the program, whatever state it was started with.
//
// A stream that is closed at start would give its number to the next file that is opened, and console lines would land
// in that file. Every write that fails (a full disk, a reader that has gone) is noticed, so that a command whose output
// is lost does not exit with 0.
//
//   int main() {
//     prepare_standard_streams();
//     const int code = ...;
//     return exit_code_after_output(code);
//   }
#pragma once

#include <string>
#include <string_view>

namespace lockstep::cli {

// To be called before any file is opened. Opens /dev/null in place of each closed stream; writes to such a standard
// output fail. From then on a broken pipe or a file that reaches its greatest size is an error of the write, not a
// signal.
void prepare_standard_streams();

// "lockstep: text" on standard error; a failure to write there is ignored.
void complain(std::string_view text);
// The same without "lockstep: ", for messages that begin with a place.
void complain_plainly(std::string_view text);

// Looks for a failed write to standard output. Best called soon after the write, while the reason is still known.
bool output_failed();

// Flushes standard output. When a write to it failed: complains, and gives 3 in place of 0 and 77.
int exit_code_after_output(int code);

}  // namespace lockstep::cli
