// A link that breaks its promises, one at a time: every rank must end with an error that says so.
#include <deque>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/control.hpp"
#include "engine/comm/ferry_messages.hpp"
#include "engine/comm/test_hosts.hpp"

namespace lockstep::comm {
namespace {

enum class Fault { reorder, drop, drop_last, repeat, repeat_data, cut, change, wrong_data, delay, refuse };

// Passes everything on, except that message `at` of the ranks' channel suffers the fault at its receiver. Heartbeats do
// not count: how many there are depends on the load of the machine.
class BrokenLink : public Link {
 public:
  BrokenLink(std::unique_ptr<Link> link, Fault fault, int at) : link_(std::move(link)), fault_(fault), at_(at) {}
  std::string name() const override { return "broken"; }
  int host() const override { return link_->host(); }
  int num_hosts() const override { return link_->num_hosts(); }
  void send(int to, Channel channel, std::string_view bytes) override { link_->send(to, channel, bytes); }
  Transfer send_with_data(int to, Channel channel, std::string_view bytes, const std::byte* data,
                          std::size_t data_bytes) override {
    // Data of another size than the message announces: one element is missing.
    const bool short_of_one = fault_ == Fault::wrong_data && link_->host() == 1;
    return link_->send_with_data(to, channel, bytes, data, short_of_one ? data_bytes - 4 : data_bytes);
  }
  bool poll(Channel channel, Message& message) override {
    if (!ready_.empty() && now_ns() >= ready_.front().not_before_ns) {
      message = std::move(ready_.front().message);
      ready_.pop_front();
      return true;
    }
    if (!ready_.empty() && fault_ == Fault::delay) return false;  // nothing overtakes it
    if (fault_ == Fault::refuse && number_ >= at_) throw Error("the link is out of order");
    if (!link_->poll(channel, message)) return false;
    if (channel != Channel::ranks || link_->host() != 0) return true;
    if (counts(message)) ++number_;
    if (number_ < at_) return true;
    if (fault_ == Fault::drop_last) return false;  // from here on nothing arrives
    if (number_ != at_ || !counts(message)) return true;
    switch (fault_) {
      case Fault::reorder: {
        Message next;
        while (!link_->poll(channel, next)) link_->progress();
        ready_.push_back({std::exchange(message, std::move(next)), 0});
        return true;
      }
      case Fault::drop:
        return poll(channel, message);
      case Fault::repeat:
      case Fault::repeat_data:
        ready_.push_back({message, 0});
        return true;
      case Fault::cut:
        message.bytes.resize(message.bytes.size() - 1);
        return true;
      case Fault::change:
        message.bytes.back() = static_cast<char>(message.bytes.back() ^ 4);
        return true;
      case Fault::delay:
        ready_.push_back({std::move(message), now_ns() + 300'000'000});
        return false;
      default:
        return true;
    }
  }
  Transfer receive(const Message& message, std::byte* to) override { return link_->receive(message, to); }
  void discard(const Message& message) override { link_->discard(message); }
  bool is_done(Transfer transfer) override { return link_->is_done(transfer); }
  void progress() override { link_->progress(); }
  bool has_sent_all() override { return link_->has_sent_all(); }
  bool is_alive(int host) override { return link_->is_alive(host); }
  int descriptor() const override { return link_->descriptor(); }
  void abandon(int exit_code) override { link_->abandon(exit_code); }

 private:
  bool counts(const Message& message) const {
    if (fault_ == Fault::repeat_data) return message.data_bytes > 0;
    std::string_view bytes = message.bytes;
    FerryHead head;
    return !take_body(bytes, head) || head.kind != FerryKind::heartbeat;
  }

  struct Held {
    Message message;
    std::int64_t not_before_ns;
  };
  std::unique_ptr<Link> link_;
  Fault fault_;
  int at_, number_ = 0;
  std::deque<Held> ready_;
};

std::vector<std::string> failures_with(Fault fault, int at) {
  return testing_hosts::run_hosts(
      {0, 1},
      [](int rank) {
        for (int step = 0; step < 10; ++step) {
          const std::vector<float> mine(20000, static_cast<float>(rank + step));
          Tensor x = testing_ranks::tensor_of(mine, DType::float32);
          all_reduce(world_group(), x, ReduceOp::sum);
          testing_ranks::require(
              testing_ranks::values_of<float>(x) == std::vector<float>(20000, static_cast<float>(2 * step + 1)),
              "a wrong sum");
        }
      },
      [=](std::unique_ptr<Link> link) { return std::make_unique<BrokenLink>(std::move(link), fault, at); });
}

struct Expected {
  const char* name;
  Fault fault;
  const char* text;
};
void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.name; }

class BrokenLinks : public testing::TestWithParam<Expected> {};

TEST_P(BrokenLinks, EndEveryRankWithTheReason) {
  // The rank at the broken end learns it; the other one learns that its peer has ended, or the reason.
  const std::vector<std::string> failures = failures_with(GetParam().fault, 7);
  EXPECT_THAT(failures[0], testing::HasSubstr(GetParam().text));
  EXPECT_NE(failures[1], "");
}

INSTANTIATE_TEST_SUITE_P(, BrokenLinks,
                         testing::Values(Expected{"Reorder", Fault::reorder, "is missing before message"},
                                         Expected{"Drop", Fault::drop, "is missing before message"},
                                         Expected{"DropAllLater", Fault::drop_last, "is lost: it has been silent for"},
                                         Expected{"Repeat", Fault::repeat, "has arrived again, or late"},
                                         Expected{"RepeatData", Fault::repeat_data, "has arrived again, or late"},
                                         Expected{"RefuseAllLater", Fault::refuse, "the link is out of order"},
                                         Expected{"Cut", Fault::cut, "was cut or changed on the way"},
                                         Expected{"Change", Fault::change, "was cut or changed on the way"},
                                         Expected{"WrongData", Fault::wrong_data, "does not fit: "}),
                         [](const auto& fault) { return std::string(fault.param.name); });

TEST(BrokenLink, DelaysChangeTheTimeOnly) {
  for (const std::string& failure : failures_with(Fault::delay, 7)) EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace lockstep::comm
