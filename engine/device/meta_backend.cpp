#include "engine/device/meta_backend.hpp"

#include "engine/core/error.hpp"

namespace lockstep::device {

namespace {

// No item exists, so nothing waits and every event is complete.
class DroppingQueue final : public Queue {
 public:
  void issue(Body, Pointers, bool) override {}
  void issue_in_halves(const Body&, Body, Pointers, std::span<const Access>) override {}
  void issue_wait(const std::shared_ptr<Queue>&, std::uint64_t) override {}
  std::uint64_t last_number() const override { return 0; }
  void await(std::uint64_t) override {}
  void clear_failure() override {}
  void drop_items() override {}
};

class MetaBackend final : public Backend {
 public:
  Arena& arena() override { return arena_; }
  std::shared_ptr<Queue> open_queue(const std::string&, Activity&) override {
    return std::make_shared<DroppingQueue>();
  }
  void copy(const Execution&, std::byte*, const std::byte*, std::size_t) override {}
  void fill(const Execution&, std::byte*, std::byte, std::size_t) override {}
  void pin(HostWorld::Region) override {}
  void unpin(HostWorld::Region) noexcept override {}
  void read(const Execution&, void*, const std::byte*, std::size_t bytes) override {
    throw Error(str("reading ", bytes, " bytes on the host: the meta device has sizes and no values"),
                "make the tensor on cpu or sim if its values are needed");
  }
  void write(const Execution&, std::byte*, const void*, std::size_t) override {}

 private:
  Arena arena_;  // undefined
};

}  // namespace

std::unique_ptr<Backend> open_meta(const RankContext&) { return std::make_unique<MetaBackend>(); }

}  // namespace lockstep::device
