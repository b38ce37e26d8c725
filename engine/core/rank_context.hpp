// The state of one rank. Ranks run as threads of one process or as processes, so the generator, streams, gradient mode,
// statistics, logs and groups of a rank belong to its context and are never global. A thread-local pointer, the only
// one, refers to the context of the current rank.
//
// Each layer keeps its state of a rank as a service: a class that is constructible from RankContext&. A service is
// created at its first use. The context destroys its services in reverse order of creation.
//
//   RankContext context(rank, world_size, host);
//   RankScope scope(context);                        // this thread now runs rank `rank`
//   RankContext::current().service<DeviceRuntime>()
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/random.hpp"

namespace lockstep {

class RankContext {
 public:
  // `shared` is the memory that the launcher shares between the ranks of a case (a device::HostWorld), or null for a
  // single rank.
  RankContext(int rank, int world_size, void* shared = nullptr);
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  void* shared() const { return shared_; }
  Generator& generator() { return generator_; }

  // The position in the scenario. It is kept here because lower layers record it when they issue work.
  std::string place;  // "file:line" of the current step; empty outside scenarios
  int scenario_line = 0;
  int iteration = -1;

  // The rank's service of type T; the first call creates it.
  template <class T>
  T& service() {
    const std::size_t slot = slot_of<T>();
    if (slot >= services_.size()) services_.resize(slot + 1);
    if (!services_[slot]) {
      services_[slot] = new T(*this);
      destroyers_.push_back({slot, [](void* service) { delete static_cast<T*>(service); }});
    }
    return *static_cast<T*>(services_[slot]);
  }
  template <class T>
  bool has_service() const {
    const std::size_t slot = slot_of<T>();
    return slot < services_.size() && services_[slot];
  }

  static RankContext& current();  // throws InternalError when this thread runs no rank
  static RankContext* current_or_null();

 private:
  friend class RankScope;
  struct Destroyer {
    std::size_t slot;
    void (*destroy)(void*);
  };
  static std::size_t next_slot();
  template <class T>
  static std::size_t slot_of() {
    static const std::size_t slot = next_slot();
    return slot;
  }

  int rank_;
  int world_size_;
  void* shared_;
  Generator generator_;
  std::vector<void*> services_;
  std::vector<Destroyer> destroyers_;
};

// Makes a context current on this thread during the lifetime of the scope.
class RankScope {
 public:
  explicit RankScope(RankContext& context);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  RankContext* previous_;
};

}  // namespace lockstep
