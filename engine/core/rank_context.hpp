// What one rank owns. A rank is a value: ranks run as threads of one process as well as processes, so generator,
// streams, gradient mode, statistics, logs and groups hang on its context and never on globals. The one thread-local
// pointer to the current rank's context lives here.
//
// Each layer keeps its own part as a service: a class constructible from RankContext&, made at first use and destroyed,
// last made first, with the context.
//
//   RankContext context(rank, world_size, host);
//   RankScope scope(context);                       // this thread now runs rank `rank`
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
  // `shared` is what the launcher gives every rank of a case (the mapped world of engine/comm), or null for a lone
  // rank.
  RankContext(int rank, int world_size, void* shared = nullptr);
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  void* shared() const { return shared_; }
  Generator& generator() { return generator_; }

  // Where the scenario is at: kept here because lower layers record it when work is issued.
  std::string place;  // "file:line" of the step that runs, empty outside scenarios
  int scenario_line = 0;
  int iteration = -1;

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

// Makes a context current on this thread for the scope's life.
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
