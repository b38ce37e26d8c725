#include "engine/parallel/fully_shard.hpp"

#include "engine/core/error.hpp"

namespace lockstep::parallel {

namespace {
[[noreturn]] void missing() { throw Error("fully_shard is not built in yet"); }
}  // namespace

void fully_shard(const std::vector<nn::ModulePtr>&, const FullyShardOptions&) { missing(); }
bool is_fully_sharded(const nn::ModulePtr&) { return false; }
void UnshardHandle::wait() { missing(); }
UnshardHandle unshard(const nn::ModulePtr&, bool) { missing(); }
void reshard(const nn::ModulePtr&) { missing(); }
int set_flags(const nn::ModulePtr&, const ShardFlags&, bool) { return 0; }
void set_forward_prefetch(const nn::ModulePtr&, const std::vector<nn::ModulePtr>&) { missing(); }
void set_backward_prefetch(const nn::ModulePtr&, const std::vector<nn::ModulePtr>&) { missing(); }
void register_forward_method(const nn::ModulePtr& module, const std::string& method) {
  module->register_forward_method(method);
}
void set_post_optim_event(const nn::ModulePtr&, device::Event) { missing(); }
void add_shard_hook(const nn::ModulePtr&, ShardPoint, std::function<void()>) { missing(); }

}  // namespace lockstep::parallel
