// The training itself: microbatches, checks, optimizer steps.
#include <algorithm>

#include "engine/core/error.hpp"
#include "harness/fuzz/render.hpp"
#include "harness/fuzz/render_checks.hpp"

namespace lockstep::fuzz {

namespace {

class Steps : private Checks {
 public:
  Steps(const Program& program, bool for_peer, Json& steps) : Checks(program, for_peer, steps) {
    has_frozen_ = !program.frozen.empty();
  }

  // The inputs of all steps are drawn first: a draw waits for the device, and would hide a missing wait.
  void draw_all() {
    put("seed", 1000 * program_.value_seed);
    Json inputs;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      std::string input = program_.model.input;
      input.replace(input.find("rows"), 4, std::to_string(step.rows));
      if (program_.has_input_gradients) input = str("requires_grad(", input, ")");
      inputs[str("x_", i)] = str("[[", input, " for k in range(", step.microbatches.size(), ")] for r in range(",
                                 parallel_->data_ranks, ")]");
    }
    put("let", inputs);
    for (const std::string& model : models_of(program_)) {
      if (program_.starts_with_state) put("init_optimizer_state", model + "_optimizer");
      if (program_.averages) render_averages(model, true, steps_);
    }
    if (program_.side) render_side(*program_.side, steps_);
    render_failing_hooks(program_, 0, program_.move ? program_.move->before_step : program_.steps.size(), steps_);
    if (program_.is_scaled) put("grad_scaler", {{"init_scale", 1024}, {"growth_interval", 1}}, "scaler");
  }

  void finish() {
    if (program_.side) render_end_of_side(program_, steps_);
    if (program_.stale) {
      steps_.push_back({{"model", program_.stale->name + "()"}, {"as", "stale"}});
      put("forward", {{"lost_in_place", "sum(stale(randn(3, 4)))"}});
      steps_.push_back({{"backward", "lost_in_place"}, {"raises", "was changed in place"}});
    }
    if (!program_.averages) return;
    for (const std::string& model : models_of(program_))
      if (model != "alone") compare("average_of_" + model, "average_of_alone");
    if (for_peer_) put("record", {{"averages", "average_of_alone"}});
  }

  void add(const Step& step, int index) {
    x_ = str("x_", index);
    if (program_.move && program_.move->before_step == static_cast<std::size_t>(index)) move();
    before(step);
    run_test(step, index);
    keep_input_gradients("loss", step);
    if (program_.beside_replicated) {
      for (std::size_t k = 0; k < step.microbatches.size(); ++k) {
        forward("replicated", "other", step, k, index);
        backward("replicated", "other", step, k);
      }
      keep_input_gradients("other", step);
    }
    add_alone(step, index);
    for (const std::string& model : models_of(program_))
      if (model != "test") freeze_late(step, model);
    if (program_.is_scaled) put("unscale", {{"optimizer", "test_optimizer"}, {"scaler", "scaler"}});
    compare_losses(step);
    compare_input_gradients(step, index);
    if (!step.overflows) compare_models();
    if (for_peer_) record(index, {{"losses", "[[item(loss) for loss in own] for own in losses]"}});
    change(step.of_gradients, true, index);
    clip(step);
    if (for_peer_) record(index, {{"gradients", "[p.grad for p in parameters(alone) if p.grad != none]"}});
    if (step.evaluates_late) evaluate();
    update(step, index);
    clear(step);
    if (step.overflows && shows_shards(step)) compare_models();
    if (step.restore == Restore::none) return;
    render_restore(step.restore, parallel_->api == Api::flat_shard, steps_);
    compare_models();
    compare_states();
  }

 private:
  void put(const std::string& verb, const Json& arguments) { steps_.push_back({{verb, arguments}}); }
  void put(const std::string& verb, const Json& arguments, const std::string& as) {
    steps_.push_back({{verb, arguments}, {"as", as}});
  }

  void move() {
    render_move(program_, for_peer_, steps_);
    render_failing_hooks(program_, program_.move->before_step, program_.steps.size(), steps_);
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

  // The backward gives gradients to the parameters that were trainable in its forward. A plain model gives none to one
  // that is frozen since, so it freezes its own after the backward.
  void freeze_late(const Step& step, const std::string& model) {
    if (step.frozen_late.empty()) return;
    put("set_requires_grad", {{"parameters", str(model, ".", step.frozen_late, ".**")}, {"to", false}});
    has_frozen_ = true;
  }

  std::string loss_of(const std::string& y) const {
    switch (program_.loss) {
      case Loss::mean:
        return str("mean(", y, " * ", y, ")");
      case Loss::entropy:  // of the first class
        return str("cross_entropy(", y, ", argmax(detach(", y, ") * 0, -1))");
      case Loss::distance:
        return str("mse_loss(", y, ", detach(", y, ") * 0 + 0.5)");
      case Loss::changed:
        return str("sum(sub_(", y, ", 1) * ", y, ")");
      default:
        return str("sum((", y, " - 1) * (", y, " - 1))");
    }
  }

  void change(const std::vector<Change>& changes, bool of_gradients, int index) {
    for (const Change& each : changes)
      for (const std::string& model : models_of(program_))
        render_change(each, model, of_gradients, index, model == "test" && parallel_->api == Api::flat_shard, steps_);
  }

  // After an evaluation the slots of the root show the values that it gathered, until the next forward; those of
  // flat_shard the shards.
  bool shows_shards(const Step& step) const {
    return !step.evaluates_late || parallel_->groups.empty() || parallel_->api == Api::flat_shard;
  }

  // Hooks come before the step in which they change something.
  void update(const Step& step, int index) {
    std::vector<Change> in_hooks, directly;
    for (const Change& each : step.of_parameters) (each.in_hook ? in_hooks : directly).push_back(each);
    change(in_hooks, false, index);
    if (has_hooks()) put("let", {{"now", index}});
    for (const std::string& model : models_of(program_)) {
      if (!step.lr.empty()) put("set_lr", {{"optimizer", model + "_optimizer"}, {"to", step.lr}});
      if (model == "test" && program_.is_scaled) {
        put("step", {{"optimizer", "test_optimizer"}, {"scaler", "scaler"}}, "is_done");
        put("expect", step.overflows ? "is_done == false" : "is_done");
        put("update_scale", "scaler");
      } else if (!step.overflows) {
        put("step", model + "_optimizer");
      }
    }
    if (step.waits_for_event) {
      put("record_event", "compute", "updated");
      put("set_post_optim_event", {{"module", "test"}, {"event", "updated"}});
    }
    change(directly, false, index);
    if (shows_shards(step) && !step.overflows) compare_models();
    if (for_peer_) record(index, {{"parameters", "[detach(p) for p in parameters(alone)]"}});
    compare_states();
    if (!program_.averages || !shows_shards(step)) return;
    for (const std::string& model : models_of(program_)) render_averages(model, false, steps_);
  }

  // A hook stays, and `now` says whether it is the one of this step.
  bool has_hooks() const {
    const auto are_in_hooks = [](const std::vector<Change>& changes) {
      return std::any_of(changes.begin(), changes.end(), [](const Change& change) { return change.in_hook; });
    };
    return std::any_of(program_.steps.begin(), program_.steps.end(), [&](const Step& step) {
      return are_in_hooks(step.of_gradients) || are_in_hooks(step.of_parameters);
    });
  }

  void run_test(const Step& step, int index) {
    const std::size_t count = step.microbatches.size();
    for (std::size_t k = 0; k < count; ++k) {
      forward("test", "loss", step, k, index);
      if (!step.is_nested) backward("test", "loss", step, k);
    }
    for (std::size_t k = count; step.is_nested && k-- > 0;) backward("test", "loss", step, k);
  }

  void forward(const std::string& model, const std::string& loss, const Step& step, std::size_t k, int index) {
    const Microbatch& microbatch = step.microbatches[k];
    set_flags(model, microbatch);
    if (model == "test") render_interruption(program_, microbatch.before, own(k), steps_);
    if (program_.model.draws) put("seed", str(seed_of(index, k), " + ", me_));
    const std::string name = str(loss, "_", k);
    const std::string y = output(step, k);
    Json values = {{y, str(model, "(", own(k), ")")}, {name, loss_of(y)}};
    const bool is_scaled = program_.is_scaled && model == "test";
    const bool overflows = step.overflows && k + 1 == step.microbatches.size();
    if (is_scaled) values[scaled(step, k)] = str(name, " * scaler.scale", overflows ? infinity(y) : "");
    put("forward", values);
    if (model == "test" && !step.is_nested) expect_resharded(step);
    if (model == "test" && microbatch.evaluates_between) evaluate();
    if (model == "test" && !microbatch.resharded_between.empty())
      put("reshard", path_of("test", microbatch.resharded_between));
    if (model == "test") freeze_late(step, model);
  }

  void backward(const std::string& model, const std::string& loss, const Step& step, std::size_t k) {
    const std::string y = output(step, k);
    if (step.microbatches[k].gives_gradient)
      put("backward", {{"loss", y}, {"gradient", str("(", y, " - 1) * 2")}});
    else
      put("backward", program_.is_scaled && model == "test" ? scaled(step, k) : str(loss, "_", k));
  }

  // Names of microbatch k. Those of several that are in progress at once differ.
  static std::string output(const Step& step, std::size_t k) { return step.is_nested ? str("y_", k) : "y"; }
  static std::string scaled(const Step& step, std::size_t k) { return step.is_nested ? str("scaled_", k) : "scaled"; }

  // A summand that makes the gradient of one output infinite, on the last rank with inputs of its own.
  std::string infinity(const std::string& y) const {
    const std::string factor =
        parallel_->data_ranks == 1 ? "inf" : str("(inf if ", me_, " == ", parallel_->data_ranks - 1, " else 0)");
    return str(" + sum(narrow(", y, ", -1, 0, 1)) * ", factor);
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
    constexpr const char* kinds[] = {"squares", "mean", "entropy", "distance", "changed"};
    if (program_.loss != Loss::squares) with["loss_kind"] = kinds[static_cast<int>(program_.loss)];
    if (parallel_->neighbours > 0) with["shards"] = parallel_->neighbours;
    if (program_.model.draws) with["seeds"] = str("[", seeds, "]");
    if (!parallel_->param.empty()) with["computes_in"] = parallel_->param;
    if (!parallel_->reduce.empty() || !parallel_->param.empty())
      with["reduces_in"] = parallel_->reduce.empty() ? parallel_->param : parallel_->reduce;
    steps_.push_back({{"use", "alone_on_one_rank"}, {"with", with}, {"as", {{"losses", "losses"}}}});
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

  bool has_frozen_ = false;
  Microbatch test_flags_, other_flags_;
};

}  // namespace

void render_steps(const Program& program, bool for_peer, Json& steps) {
  Steps all(program, for_peer, steps);
  all.draw_all();
  for (std::size_t i = 0; i < program.steps.size(); ++i) all.add(program.steps[i], static_cast<int>(i));
  all.finish();
}

}  // namespace lockstep::fuzz
