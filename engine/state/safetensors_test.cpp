#include "engine/state/safetensors.hpp"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::state {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr device::Device cpu{device::Kind::cpu, 0};

class Safetensors : public testing::Test {
 protected:
  static std::string file_of(const std::string& header, const std::string& data) {
    const std::uint64_t size = header.size();
    return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + data;
  }
  static std::string error_of(const std::string& bytes) {
    try {
      read_safetensors(bytes, "weights.safetensors", cpu);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("`weights.safetensors`"));
      return error.what();
    }
    return "read without an error";
  }
  // The error of a file with one tensor `w` that has these fields and 8 bytes of data.
  static std::string error_of_fields(const std::string& fields) {
    return error_of(file_of("{\"w\":{" + fields + "}}", std::string(8, '\0')));
  }
  static std::string entry(const std::string& name, int begin, int end) {
    return str("\"", name, "\":{\"dtype\":\"F32\",\"shape\":[", (end - begin) / 4, "],\"data_offsets\":[", begin, ",",
               end, "]}");
  }

  RankContext context_{0, 1};
  RankScope scope_{context_};
};

TEST_F(Safetensors, ReadsWhatItWrote) {
  const Tensor a = from_values(std::vector<double>{1.5, -2, 3}, {3}, DType::bfloat16, cpu);
  const Tensor b = from_values(std::vector<std::int64_t>{1, 0}, {2, 1}, DType::boolean, cpu);
  const Tensor none = empty({0, 4}, DType::float32, cpu);
  const NamedTensors back = read_safetensors(write_safetensors({{"a", a}, {"none", none}, {"b", b}}), "f", cpu);
  ASSERT_EQ(back.size(), 3u);
  EXPECT_EQ(back[0].first, "a");
  EXPECT_EQ(back[0].second.dtype(), DType::bfloat16);
  EXPECT_THAT(to_doubles(back[0].second), ElementsAre(1.5, -2, 3));
  EXPECT_EQ(back[1].second.sizes(), (Dims{0, 4}));
  EXPECT_EQ(back[2].second.sizes(), (Dims{2, 1}));
  EXPECT_THAT(to_doubles(back[2].second), ElementsAre(1, 0));
}

TEST_F(Safetensors, RefusesToWriteInvalidNames) {
  const Tensor a = zeros({1}, DType::float32, cpu);
  EXPECT_THROW(write_safetensors({{"a", a}, {"a", a}}), Error);
  EXPECT_THROW(write_safetensors({{"__metadata__", a}}), Error);
}

TEST_F(Safetensors, ReadsDataInAnotherOrderThanTheHeader) {
  const float values[] = {1, 2, 3};
  const std::string data(reinterpret_cast<const char*>(values), sizeof values);
  const NamedTensors read = read_safetensors(
      file_of("{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", 4, 12) + "," + entry("a", 0, 4) + "}  ", data), "f",
      cpu);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_THAT(to_doubles(read[0].second), ElementsAre(2, 3));
  EXPECT_THAT(to_doubles(read[1].second), ElementsAre(1));
}

TEST_F(Safetensors, TensorsOnMetaTakeNoData) {
  const device::Device meta{device::Kind::meta, 0};
  const NamedTensors read = read_safetensors(file_of("{" + entry("a", 0, 8) + "}", std::string(8, '\0')), "f", meta);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_TRUE(read[0].second.is_meta());
  EXPECT_EQ(read[0].second.sizes(), (Dims{2}));
}

TEST_F(Safetensors, HeadersThatAreCutOrNoHeadersAreRefused) {
  EXPECT_THAT(error_of("1234567"), HasSubstr("it has 7 bytes"));
  EXPECT_THAT(error_of(file_of("{}", "").substr(0, 9)), HasSubstr("a header of 2 bytes, of which 1 are there"));
  const std::uint64_t most = ~std::uint64_t{0};
  EXPECT_THAT(error_of(std::string(reinterpret_cast<const char*>(&most), 8) + "{}"),
              HasSubstr("a header of 18446744073709551615 bytes"));
  EXPECT_THAT(error_of(file_of("{\"w\":", "")), HasSubstr("parse"));
  EXPECT_THAT(error_of(file_of("[]", "")), HasSubstr("the header is no map"));
  EXPECT_THAT(error_of(file_of("{\"w\":\"\xff\"}", "")), HasSubstr("UTF-8"));
  EXPECT_THAT(error_of(file_of("{\"__metadata__\":{\"n\":1}}", "")), HasSubstr("__metadata__"));
}

TEST_F(Safetensors, DeepHeadersAreRefused) {
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[[2]],\"data_offsets\":[0,8]"),
              HasSubstr("nests deeper than 3"));
  EXPECT_THAT(error_of(file_of(std::string(5'000'000, '['), "")), HasSubstr("nests deeper than 3"));
}

TEST_F(Safetensors, NamesAndFieldsGivenTwiceAreRefused) {
  EXPECT_THAT(error_of(file_of("{" + entry("w", 0, 4) + "," + entry("w", 4, 8) + "}", std::string(8, '\0'))),
              HasSubstr("`w` is given twice"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[1],\"shape\":[2],\"data_offsets\":[0,8]"),
              HasSubstr("`shape` is given twice"));
}

TEST_F(Safetensors, RefusesMissingAndWrongFields) {
  EXPECT_THAT(error_of(file_of("{\"w\":3}", "")), AllOf(HasSubstr("tensor `w`"), HasSubstr("no map")));
  EXPECT_THAT(error_of_fields("\"shape\":[2],\"data_offsets\":[0,8]"), HasSubstr("it has no dtype"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"U16\",\"shape\":[4],\"data_offsets\":[0,8]"),
              HasSubstr("the type \"U16\" is none of F32"));
  EXPECT_THAT(error_of_fields("\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,8]"),
              HasSubstr("the type 7 is none of F32"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), HasSubstr("shape is no list"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[-1,-2],\"data_offsets\":[0,8]"),
              HasSubstr("shape holds -1"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"),
              HasSubstr("shape holds 2.0"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[18446744073709551615],\"data_offsets\":[0,8]"),
              HasSubstr("shape holds 18446744073709551615"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]"),
              HasSubstr("it has 9 dims, more than 8"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]"),
              HasSubstr("[8] are no begin and end"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"),
              HasSubstr("[8,0] are no begin and end"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]"),
              HasSubstr("data_offsets holds -8"));
}

TEST_F(Safetensors, RefusesShapesThatOverflow) {
  // 2^32 * 2^32 * 16 wraps to 0 bytes, 768614336404564651 * 24 * 4 to 32.
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,16],\"data_offsets\":[0,0]"),
              AllOf(HasSubstr("tensor `w`"), HasSubstr("sizes (4294967296, 4294967296, 16)")));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[768614336404564651,24],\"data_offsets\":[0,32]"),
              HasSubstr("sizes (768614336404564651, 24)"));
}

TEST_F(Safetensors, RefusesDataOfTheWrongSize) {
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]"),
              HasSubstr("8 bytes of data for F32 (1,), which has 4"));
  EXPECT_THAT(error_of_fields("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]"),
              HasSubstr("its data ends at 16, the file's at 8"));
  EXPECT_THAT(
      error_of_fields("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[9223372036854775799,9223372036854775807]"),
      HasSubstr("its data ends at 9223372036854775807"));
  EXPECT_THAT(error_of(file_of("{\"w\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}", "\x01\x02")),
              AllOf(HasSubstr("tensor `w`"), HasSubstr("neither 0 nor 1")));
}

TEST_F(Safetensors, RefusesGapsAndOverlaps) {
  const std::string data(16, '\0');
  EXPECT_THAT(error_of(file_of("{" + entry("a", 0, 8) + "," + entry("b", 4, 16) + "}", data)),
              AllOf(HasSubstr("tensor `b`"), HasSubstr("begins at 4, within that of `a`, which ends at 8")));
  EXPECT_THAT(error_of(file_of("{" + entry("a", 0, 4) + "," + entry("b", 8, 16) + "}", data)),
              AllOf(HasSubstr("tensor `b`"), HasSubstr("bytes 4 to 8 before its data belong to no tensor")));
  EXPECT_THAT(error_of(file_of("{" + entry("a", 0, 12) + "}", data)),
              HasSubstr("bytes 12 to 16 of its data belong to no tensor"));
}

}  // namespace
}  // namespace lockstep::state
