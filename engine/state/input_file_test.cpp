#include "engine/state/input_file.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "engine/state/test_support.hpp"

namespace lockstep::state {
namespace {

// Another program shortens the mapped file. The part that is left can be read. Pages behind its end must not be
// fetched.
TEST(InputFile, FetchesNothingAheadOfBytesOutOfOrder) {
  constexpr std::size_t part = std::size_t{64} << 10;
  const testing::TemporaryFolder folder;
  const std::string path = folder / "a";
  std::ofstream(path) << std::string(40 * part, 'a');
  InputFile file(path);
  EXPECT_EQ(*file.view(0, 1), std::byte{'a'});
  std::filesystem::resize_file(path, 12 * part);
  EXPECT_EQ(*file.view(10 * part, 1), std::byte{'a'});
}

}  // namespace
}  // namespace lockstep::state
