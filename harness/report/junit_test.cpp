#include "harness/report/junit.hpp"

#include <map>
#include <random>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pugixml.hpp>

#include "engine/core/text.hpp"
#include "harness/report/text.hpp"

namespace lockstep::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using verdict::CaseResult;
using verdict::Status;

CaseResult row(const std::string& scenario, const std::string& id, Status status) {
  CaseResult r;
  r.scenario = scenario;
  r.case_id = id;
  r.status = status;
  r.seconds = 0.5;
  r.repro = "lockstep run " + scenario;
  if (status == Status::SKIP || status == Status::UNSUPPORTED || status == Status::XFAIL || status == Status::XPASS) {
    r.reason = "because";
  }
  if (status == Status::FAIL || status == Status::CRASH || status == Status::XFAIL) {
    r.failure = verdict::Failure{};
    r.failure->check = "expect_equal";
    r.failure->file = "scenarios/a.yaml";
    r.failure->line = 12;
    r.failure->column = 5;
    r.failure->rank = 1;
    r.failure->message = "2 of 6 elements differ\n  first at (0, 1)";
  }
  return r;
}

pugi::xml_document parsed(const std::string& xml) {
  pugi::xml_document document;
  const auto result = document.load_buffer(xml.data(), xml.size(), pugi::parse_full, pugi::encoding_utf8);
  EXPECT_TRUE(result) << result.description();
  return document;
}

// The attributes and children that the Jenkins schema allows per element.
const std::map<std::string, std::set<std::string>> allowed_children = {
    {"testsuites", {"testsuite"}},
    {"testsuite", {"testcase"}},
    {"testcase", {"properties", "skipped", "error", "failure"}},
    {"properties", {"property"}},
    {"property", {}},
    {"skipped", {}},
    {"error", {}},
    {"failure", {}}};
const std::map<std::string, std::set<std::string>> allowed_attributes = {
    {"testsuites", {"name", "time", "tests", "failures", "errors"}},
    {"testsuite", {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"}},
    {"testcase", {"name", "classname", "time", "file", "line"}},
    {"properties", {}},
    {"property", {"name", "value"}},
    {"skipped", {"type", "message"}},
    {"error", {"type", "message"}},
    {"failure", {"type", "message"}}};

void expect_in_schema(const pugi::xml_node& node) {
  const std::string name = node.name();
  ASSERT_TRUE(allowed_children.count(name)) << name;
  for (const auto& attribute : node.attributes()) {
    EXPECT_TRUE(allowed_attributes.at(name).count(attribute.name())) << name << " " << attribute.name();
    if (std::string(attribute.name()) == "time") {
      EXPECT_TRUE(std::regex_match(attribute.value(), std::regex("[0-9]+\\.[0-9]{3}"))) << attribute.value();
    }
  }
  for (const auto& child : node.children()) {
    if (child.type() != pugi::node_element) continue;
    EXPECT_TRUE(allowed_children.at(name).count(child.name())) << name << " holds " << child.name();
    expect_in_schema(child);
  }
}

// Whether the text is valid UTF-8 with no character below 0x20, nor a reference to one, except newline, tab and
// carriage return.
void expect_xml_characters(const std::string& xml) {
  for (const char c : xml) {
    const auto byte = static_cast<unsigned char>(c);
    EXPECT_TRUE(byte >= 0x20 || c == '\n' || c == '\t' || c == '\r') << static_cast<int>(byte);
  }
  EXPECT_FALSE(std::regex_search(xml, std::regex("&#(0?[0-8]|1[124-9]|2[0-9]|3[01]|x0?[0-8bcefBCEF]|x1[0-9a-fA-F]);")));
  EXPECT_EQ(valid_utf8(xml), xml);
}

TEST(Junit, HasASuitePerScenarioAndATestcasePerCase) {
  const std::string xml = junit_xml({row("compose/a", "x=1", Status::PASS), row("compose/b", "", Status::FAIL),
                                     row("compose/a", "x=2", Status::SKIP)},
                                    "2026-01-02T03:04:05Z");
  const auto document = parsed(xml);
  const auto root = document.child("testsuites");
  expect_in_schema(root);
  EXPECT_STREQ(root.attribute("tests").value(), "3");
  EXPECT_STREQ(root.attribute("failures").value(), "1");
  EXPECT_STREQ(root.attribute("errors").value(), "0");
  EXPECT_STREQ(root.attribute("time").value(), "1.500");
  const auto a = root.child("testsuite");
  EXPECT_STREQ(a.attribute("name").value(), "compose/a");
  EXPECT_STREQ(a.attribute("tests").value(), "2");
  EXPECT_STREQ(a.attribute("skipped").value(), "1");
  EXPECT_STREQ(a.attribute("timestamp").value(), "2026-01-02T03:04:05Z");
  EXPECT_STREQ(a.child("testcase").attribute("name").value(), "x=1");
  EXPECT_STREQ(a.child("testcase").attribute("classname").value(), "compose/a");
  EXPECT_STREQ(a.child("testcase").next_sibling().attribute("name").value(), "x=2");
  const auto b = a.next_sibling("testsuite");
  EXPECT_STREQ(b.attribute("name").value(), "compose/b");
  EXPECT_FALSE(b.next_sibling("testsuite"));
}

TEST(Junit, BeginsTheTextOfAFailureWithFileAndLine) {
  const auto document = parsed(junit_xml({row("compose/a", "", Status::FAIL)}));
  const auto failure = document.child("testsuites").child("testsuite").child("testcase").child("failure");
  EXPECT_STREQ(failure.attribute("type").value(), "FAIL");
  EXPECT_STREQ(failure.attribute("message").value(), "2 of 6 elements differ");
  EXPECT_STREQ(failure.text().get(),
               "scenarios/a.yaml:12:5: expect_equal, rank 1\n2 of 6 elements differ\n  first at (0, 1)\n"
               "again: lockstep run compose/a");
}

TEST(Junit, HasAnElementForEveryVerdict) {
  const std::map<Status, std::string> elements = {{Status::PASS, ""},         {Status::FAIL, "failure"},
                                                  {Status::XFAIL, "skipped"}, {Status::XPASS, "failure"},
                                                  {Status::SKIP, "skipped"},  {Status::HANG, "error"},
                                                  {Status::CRASH, "error"},   {Status::INVALID, "error"},
                                                  {Status::MISSING, "error"}, {Status::UNSUPPORTED, "skipped"}};
  ASSERT_EQ(elements.size(), static_cast<std::size_t>(verdict::num_statuses));
  for (const auto& [status, element] : elements) {
    const auto document = parsed(junit_xml({row("a", "b", status)}));
    const auto properties = document.child("testsuites").child("testsuite").child("testcase").first_child();
    ASSERT_STREQ(properties.name(), "properties");
    const auto node = properties.next_sibling();
    EXPECT_EQ(std::string(node.name()), element) << verdict::name_of(status);
    const std::string type = element.empty() ? "" : std::string(verdict::name_of(status));
    EXPECT_EQ(std::string(node.attribute("type").value()), type);
  }
}

TEST(Junit, GivesFileLineAndPropertiesOfATestcase) {
  CaseResult failed = row("compose/a", "world_size=4", Status::FAIL);
  failed.file = "scenarios/a.yaml";
  failed.world_size = 4;
  failed.mirrors = 16;
  const auto testcase = [](const CaseResult& of) {
    static pugi::xml_document kept;
    kept.load_string(junit_xml({of}).c_str());
    return kept.child("testsuites").child("testsuite").child("testcase");
  };
  auto node = testcase(failed);
  EXPECT_STREQ(node.attribute("file").value(), "scenarios/a.yaml");
  EXPECT_STREQ(node.attribute("line").value(), "12");
  const auto value = [&](const char* name) {
    return std::string(
        node.child("properties").find_child_by_attribute("property", "name", name).attribute("value").value());
  };
  EXPECT_EQ(value("world_size"), "4");
  EXPECT_EQ(value("mirrors"), "16");
  EXPECT_EQ(value("status"), "FAIL");
  EXPECT_EQ(value("repro"), "lockstep run compose/a");
  failed.failure->file = "scenarios/lib/train.yaml";  // inside a routine: the calling line counts
  failed.failure->scenario_line = 30;
  node = testcase(failed);
  EXPECT_STREQ(node.attribute("line").value(), "30");
  failed.failure.reset();
  node = testcase(failed);
  EXPECT_STREQ(node.attribute("line").value(), "1");
}

// The names of a scenario's cases do not depend on the other scenarios.
TEST(Junit, NumbersRepeatedCasesOfEachScenario) {
  const auto document =
      parsed(junit_xml({row("a", "b", Status::PASS), row("c", "b", Status::PASS), row("a", "b", Status::FAIL),
                        row("a", "d", Status::PASS), row("c", "b", Status::PASS), row("a", "b", Status::PASS)}));
  std::vector<std::string> names;
  for (const auto& suite : document.child("testsuites").children("testsuite"))
    for (const auto& testcase : suite.children("testcase"))
      names.push_back(str(suite.attribute("name").value(), ": ", testcase.attribute("name").value()));
  EXPECT_THAT(names, ElementsAre("a: b", "a: b (2)", "a: d", "a: b (3)", "c: b", "c: b (2)"));
}

TEST(Junit, IsValidWithoutResults) {
  const auto document = parsed(junit_xml({}));
  EXPECT_STREQ(document.child("testsuites").attribute("tests").value(), "0");
}

TEST(Junit, StaysWellFormedForHostileTexts) {
  CaseResult r = row("a<b>&\"'", "]]>\n<!--\x01\x1b[31m", Status::FAIL);
  r.failure->message = std::string("nul \0 bell \a esc \x1b delete \x7f latin \xe9 overlong \xc0\xaf ", 47) +
                       "surrogate \xed\xa0\x80 nonchar \xef\xbf\xbf\xef\xbf\xbe fine \xe2\x82\xac ]]> <x> &amp;";
  r.failure->file = "a\tb<.yaml";
  r.seconds = -1;
  const std::string xml = junit_xml({r});
  expect_xml_characters(xml);
  const auto document = parsed(xml);
  expect_in_schema(document.child("testsuites"));
  const auto testcase = document.child("testsuites").child("testsuite").child("testcase");
  EXPECT_STREQ(testcase.attribute("classname").value(), "a<b>&\"'");
  EXPECT_STREQ(testcase.attribute("name").value(), "]]>\\n<!--\\x01\\x1b[31m");
  const std::string text = testcase.child("failure").text().get();
  EXPECT_THAT(
      text,
      HasSubstr("nul \\x00 bell \\x07 esc \\x1b delete \\x7f latin \xef\xbf\xbd overlong \xef\xbf\xbd\xef\xbf\xbd"));
  EXPECT_THAT(text, HasSubstr("fine \xe2\x82\xac ]]> <x> &amp;"));
}

TEST(Junit, StaysWellFormedForRandomBytes) {
  std::mt19937 generator(5);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    CaseResult r = row("s", "c", Status::CRASH);
    r.failure->message.clear();
    for (int i = 0; i < 60; ++i) r.failure->message += static_cast<char>(generator());
    r.scenario = r.failure->message.substr(0, 10);
    const std::string xml = junit_xml({r});
    expect_xml_characters(xml);
    expect_in_schema(parsed(xml).child("testsuites"));
  }
}

}  // namespace
}  // namespace lockstep::report
