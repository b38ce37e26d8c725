// The training itself: microbatches, checks, optimizer steps.
#include "engine/core/error.hpp"
#include "harness/fuzz/render.hpp"
#include "harness/fuzz/render_internal.hpp"

namespace lockstep::fuzz {

namespace {

class Steps {
 public:
  Steps(const Program& program, bool for_peer, Json& steps)
      : for_peer_(for_peer), program_(program), parallel_(&program.parallel), steps_(steps) {
    exact_ = promises_bits(program);
    has_frozen_ = !program.frozen.empty();
    me_ = parallel_->only_tensor_parallel ? "0" : parallel_->names == "[dp, tp]" ? "world.dp.rank" : "rank";
  }

  // The inputs of all steps are drawn first: a draw waits for the device, and would hide a missing wait.
  void draw_all() {
    put("seed", 1000 * program_.value_seed);
    Json inputs;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      std::string input = program_.model.input;
      input.replace(input.find("rows"), 4, std::to_string(step.rows));
      inputs[str("x_", i)] = str("[[", input, " for k in range(", step.microbatches.size(), ")] for r in range(",
                                 parallel_->data_ranks, ")]");
    }
    put("let", inputs);
  }

  void add(const Step& step, int index) {
    x_ = str("x_", index);
    if (program_.move && program_.move->before_step == static_cast<std::size_t>(index)) move();
    before(step);
    for (std::size_t k = 0; k < step.microbatches.size(); ++k) run("test", "loss", step, k, index);
    if (program_.beside_replicated) {
      for (std::size_t k = 0; k < step.microbatches.size(); ++k) run("replicated", "other", step, k, index);
    }
    add_alone(step, index);
    compare_losses(step);
    compare_models();
    if (for_peer_) record(index, {{"losses", "[[item(loss) for loss in own] for own in losses]"}});
    clip(step);
    if (for_peer_) record(index, {{"gradients", "[p.grad for p in parameters(alone) if p.grad != none]"}});
    if (step.evaluates_late) evaluate();
    for (const std::string& model : models_of(program_)) {
      if (!step.lr.empty()) put("set_lr", {{"optimizer", model + "_optimizer"}, {"to", step.lr}});
      put("step", model + "_optimizer");
    }
    // After an evaluation the slots of the root show the values that it gathered, until the next forward.
    if (!step.evaluates_late || parallel_->groups.empty()) compare_models();
    if (for_peer_) record(index, {{"parameters", "[detach(p) for p in parameters(alone)]"}});
    compare_states();
    clear(step);
  }

 private:
  void put(const std::string& verb, const Json& arguments) { steps_.push_back({{verb, arguments}}); }
  void put(const std::string& verb, const Json& arguments, const std::string& as) {
    steps_.push_back({{verb, arguments}, {"as", as}});
  }

  void record(int index, const Json& values) {
    Json named;
    for (const auto& [name, value] : values.items()) named[str(name, "_", index)] = value;
    put("record", named);
  }

  // Microbatch k of this rank.
  std::string own(std::size_t k) const { return str(x_, "[", me_, "][", k, "]"); }

  void evaluate() {
    put("let", {{"seen", str("test(", own(0), ")")}, {"wanted", str("alone(", own(0), ")")}});
    if (parallel_->param.empty()) compare("seen", "wanted");
  }

  void move() {
    render_move(program_, for_peer_, steps_);
    parallel_ = &program_.move->parallel;
    test_flags_ = {};
  }

  void before(const Step& step) {
    for (const std::string& model : models_of(program_)) {
      if (!step.frozen.empty())
        put("set_requires_grad", {{"parameters", str(model, ".", step.frozen, ".**")}, {"to", false}});
      has_frozen_ |= !step.frozen.empty();
      if (!step.thawed.empty())
        put("set_requires_grad", {{"parameters", str(model, ".", step.thawed, ".**")}, {"to", true}});
    }
    if (step.evaluates) evaluate();
    if (step.unsharded.empty() && !step.unshards_async) return;
    const std::string module = path_of("test", step.unsharded);
    if (step.unshards_async) {
      put("unshard", {{"modules", module}, {"async", true}}, "handle");
      put("wait", "handle");
    } else {
      put("unshard", module);
    }
  }

  std::string loss_of(const std::string& output) const {
    return program_.means ? str("mean(", output, " * ", output, ")")
                          : str("sum((", output, " - 1) * (", output, " - 1))");
  }

  void run(const std::string& model, const std::string& loss, const Step& step, std::size_t k, int index) {
    const Microbatch& microbatch = step.microbatches[k];
    set_flags(model, microbatch);
    if (program_.model.draws) put("seed", str(seed_of(index, k), " + ", me_));
    const std::string name = str(loss, "_", k);
    put("forward", {{"y", str(model, "(", own(k), ")")}, {name, loss_of("y")}});
    if (model == "test") expect_resharded(step);
    if (model == "test" && !microbatch.resharded_between.empty())
      put("reshard", path_of("test", microbatch.resharded_between));
    put("backward", name);
  }

  void expect_resharded(const Step& step) {
    const std::string most = gathered_after_forward(program_, *parallel_, step);
    if (!most.empty()) put("expect", str("memory(['gathered']) <= ", most));
  }

  std::int64_t seed_of(int index, std::size_t k) const {
    return 1000 * program_.value_seed + 100 * index + 10 * (static_cast<std::int64_t>(k) + 1);
  }

  // Only the flags that change.
  void set_flags(const std::string& model, const Microbatch& wanted) {
    if (parallel_->only_tensor_parallel) return;
    Microbatch& now = model == "test" ? test_flags_ : other_flags_;
    Json flags = Json::object();
    if (wanted.sync != now.sync) flags["requires_gradient_sync"] = wanted.sync;
    if (model == "test") {
      if (wanted.all_reduces != now.all_reduces) flags["requires_all_reduce"] = wanted.all_reduces;
      if (wanted.reshards != now.reshards) flags["reshard_after_backward"] = wanted.reshards;
      if (wanted.last_backward != now.last_backward) flags["is_last_backward"] = wanted.last_backward;
    }
    now = wanted;
    if (flags.empty()) return;
    Json arguments = {{"modules", model}};
    if (model == "test" && parallel_->replicated.size() > 1) {
      arguments["modules"] = Json::array();
      for (const std::string& module : parallel_->replicated) arguments["modules"].push_back(path_of("test", module));
    }
    arguments.update(flags);
    put("set_flags", arguments);
  }

  void add_alone(const Step& step, int index) {
    Json with = {{"plain", "alone"}, {"inputs", x_}};
    std::string rounds, round, seeds;
    for (std::size_t k = 0; k < step.microbatches.size(); ++k) {
      round += (round.empty() ? "" : ", ") + std::to_string(k);
      seeds += (seeds.empty() ? "" : ", ") + std::to_string(seed_of(index, k));
      if (!step.microbatches[k].sync || !step.microbatches[k].all_reduces) continue;
      rounds += str(rounds.empty() ? "" : ", ", "[", round, "]");
      round.clear();
    }
    if (step.microbatches.size() > 1) with["rounds"] = str("[", rounds, "]");
    if (program_.means) with["loss_kind"] = "mean";
    if (parallel_->neighbours > 0) with["shards"] = parallel_->neighbours;
    if (program_.model.draws) with["seeds"] = str("[", seeds, "]");
    if (!parallel_->param.empty()) with["computes_in"] = parallel_->param;
    if (!parallel_->reduce.empty() || !parallel_->param.empty())
      with["reduces_in"] = parallel_->reduce.empty() ? parallel_->param : parallel_->reduce;
    steps_.push_back({{"use", "alone_on_one_rank"}, {"with", with}, {"as", {{"losses", "losses"}}}});
  }

  // The allowance where the bits are not promised: float32 rounded in another order. A norm of nearly equal values
  // multiplies the rounding by up to 1 / sqrt(eps), about 300.
  Json allowance(const std::string& actual, const std::string& expected) const {
    Json arguments = {{"actual", actual}, {"expected", expected}};
    if (exact_) {
      arguments["bits"] = true;
    } else {
      arguments["rtol"] = "1e-3";
      arguments["of_largest"] = parallel_->api == Api::tensor_parallel ? "1e-3" : "1e-4";
    }
    return arguments;
  }

  void compare(const std::string& actual, const std::string& expected) {
    put("expect_equal", allowance(actual, expected));
  }

  void compare_losses(const Step& step) {
    for (const char* loss : {"loss", "other"}) {
      if (loss[0] == 'o' && !program_.beside_replicated) continue;
      std::string list;
      for (std::size_t k = 0; k < step.microbatches.size(); ++k)
        list += str(list.empty() ? "" : ", ", "detach(", loss, "_", k, ")");
      compare(str("[", list, "]"), str("losses[", me_, "]"));
    }
  }

  void compare_models() {
    if (parallel_->api == Api::flat_shard) {
      Json inner = Json::array();
      Json outer = std::exchange(steps_, Json::array());
      compare_test();
      inner = std::exchange(steps_, std::move(outer));
      steps_.push_back({{"summon_full_parameters", {{"model", "test"}, {"gradients", true}, {"writeback", false}}},
                        {"steps", inner}});
    } else {
      compare_test();
    }
    if (program_.beside_replicated) compare_plainly("replicated");
    if (program_.beside_replicated && promises_buffers(program_)) compare("buffers(test)", "buffers(replicated)");
  }

  // With offload the shards are on the host.
  void compare_test() {
    if (!is_on_host()) return compare_plainly("test");
    compare("[detach(p) for p in parameters(test)]", "[to(detach(p), 'cpu') for p in parameters(alone)]");
    compare("[p.grad for p in parameters(test) if p.grad != none]",
            "[to(p.grad, 'cpu') for p in parameters(alone) if p.grad != none]");
  }

  // The rank alone has seen the batches of all ranks, so its running statistics are others.
  void compare_plainly(const std::string& model) {
    if (!program_.model.has_buffers) return compare(model, "alone");
    compare(str("[detach(p) for p in parameters(", model, ")]"), "[detach(p) for p in parameters(alone)]");
    compare(str("[p.grad for p in parameters(", model, ") if p.grad != none]"),
            "[p.grad for p in parameters(alone) if p.grad != none]");
  }

  bool is_on_host() const { return !parallel_->offload.empty() && program_.device != "cpu"; }

  void compare_states() {
    const bool has_state = program_.optimizer.type != "SGD" || !program_.optimizer.momentum.empty();
    if (!has_state || parallel_->api == Api::flat_shard || !program_.optimizer.own_group.empty()) return;
    if (is_on_host())
      compare("tensors(test_optimizer)", "[to(t, 'cpu') for t in tensors(alone_optimizer)]");
    else
      compare("tensors(test_optimizer)", "tensors(alone_optimizer)");
  }

  void clip(const Step& step) {
    if (step.max_norm.empty()) return;
    for (const std::string& model : models_of(program_)) {
      Json arguments = {{"model", model}, {"max_norm", step.max_norm}};
      if (!step.norm.empty()) arguments["norm"] = step.norm;
      put("clip_grad_norm", arguments, model + "_norm");
    }
    compare(is_on_host() ? "to(test_norm, 'cpu')" : "test_norm", is_on_host() ? "to(alone_norm, 'cpu')" : "alone_norm");
  }

  void clear(const Step& step) {
    if (step.clear == Clear::not_at_all) return;
    for (const std::string& model : models_of(program_)) {
      Json arguments = model + "_optimizer";
      if (step.clear == Clear::to_zeros) arguments = {{"of", model + "_optimizer"}, {"set_to_none", false}};
      put("zero_grad", arguments);
    }
    // A root of its own whose parameters are frozen has no backward after which it is resharded.
    const bool may_stay =
        parallel_->api == Api::flat_shard || step.evaluates_late || (parallel_->root_is_replicated && has_frozen_);
    if (!may_stay) put("expect", "memory(['gathered']) == 0");
  }

  const bool for_peer_;
  const Program& program_;
  const Parallel* parallel_;  // of the model under test
  Json& steps_;
  bool exact_ = true, has_frozen_ = false;
  std::string me_, x_;  // the index of this rank's inputs, and the inputs of the step
  Microbatch test_flags_, other_flags_;
};

}  // namespace

void render_steps(const Program& program, bool for_peer, Json& steps) {
  Steps all(program, for_peer, steps);
  all.draw_all();
  for (std::size_t i = 0; i < program.steps.size(); ++i) all.add(program.steps[i], static_cast<int>(i));
}

}  // namespace lockstep::fuzz
