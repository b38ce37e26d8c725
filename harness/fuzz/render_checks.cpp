#include "harness/fuzz/render_checks.hpp"

#include <utility>

#include "engine/core/error.hpp"
#include "harness/fuzz/render.hpp"

namespace lockstep::fuzz {

Checks::Checks(const Program& program, bool for_peer, Json& steps)
    : for_peer_(for_peer), program_(program), parallel_(&program.parallel), steps_(steps) {
  exact_ = promises_bits(program);
  me_ = parallel_->only_tensor_parallel ? "0" : parallel_->names == "[dp, tp]" ? "world.dp.rank" : "rank";
}

void Checks::record(int index, const Json& values) {
  Json named;
  for (const auto& [name, value] : values.items()) named[str(name, "_", index)] = value;
  put("record", named);
}

// Microbatch k of this rank.
std::string Checks::own(std::size_t k) const { return str(x_, "[", me_, "][", k, "]"); }

void Checks::evaluate() {
  const auto set_training = [&](bool to) {
    for (const char* model : {"test", "alone"}) put("set_training", {{"model", model}, {"to", to}});
  };
  if (program_.model.draws) set_training(false);
  put("let", {{"seen", str("test(", own(0), ")")}, {"wanted", str("alone(", own(0), ")")}});
  if (program_.model.draws) set_training(true);
  if (parallel_->param.empty()) compare("seen", "wanted");
}

void Checks::keep_input_gradients(const std::string& loss, const Step& step) {
  for (std::size_t k = 0; program_.has_input_gradients && k < step.microbatches.size(); ++k) {
    put("let", {{str("input_", loss, "_", k), str("clone(", own(k), ".grad)")}});
    put("set_gradient", {{"parameter", own(k)}, {"to", "none"}});
  }
}

void Checks::compare_input_gradients(const Step& step, int index) {
  if (!program_.has_input_gradients) return;
  for (std::size_t k = 0; k < step.microbatches.size(); ++k) {
    compare(str("input_loss_", k), own(k) + ".grad");
    if (program_.beside_replicated) compare(str("input_other_", k), own(k) + ".grad");
  }
  if (for_peer_) record(index, {{"inputs", str("[[x.grad for x in own] for own in ", x_, "]")}});
}

void Checks::expect_resharded(const Step& step) {
  const std::string most = gathered_after_forward(program_, *parallel_, step);
  if (!most.empty()) put("expect", str("memory(['gathered']) <= ", most));
}

// The allowance where the bits are not promised: float32 rounded in another order. A norm of nearly equal values
// multiplies the rounding by up to 1 / sqrt(eps), about 300.
Json Checks::allowance(const std::string& actual, const std::string& expected) const {
  Json arguments = {{"actual", actual}, {"expected", expected}};
  if (exact_) {
    arguments["bits"] = true;
  } else {
    arguments["rtol"] = "1e-3";
    arguments["of_largest"] = parallel_->api == Api::tensor_parallel ? "1e-3" : "1e-4";
  }
  return arguments;
}

void Checks::compare(const std::string& actual, const std::string& expected) {
  put("expect_equal", allowance(actual, expected));
}

// Gradients, and what is made of them. Under a scaler, those below the smallest normal float32 are rounded at another
// place; larger values stay exact.
void Checks::compare_gradients(const std::string& actual, const std::string& expected) {
  if (!exact_ || !program_.is_scaled) return compare(actual, expected);
  put("expect_equal", {{"actual", actual}, {"expected", expected}, {"rtol", 0}, {"atol", "1.2e-38"}});
}

void Checks::gather_losses() {
  const std::string mesh = parallel_->names == "[dp, tp]" ? "world.dp" : "all_ranks";
  put("let", {{"own_loss", "reshape(clone(detach(loss_0)), 1)"}});
  put("all_gather", {{"tensor", "own_loss"}, {"mesh", mesh}}, "all_losses");
  compare("all_losses", "cat([reshape(own[0], 1) for own in losses])");
  put("all_reduce", {{"tensor", "own_loss"}, {"op", "mean"}, {"mesh", mesh}});
  put("expect_equal", {{"actual", "own_loss"}, {"expected", "reshape(mean(all_losses), 1)"}});
}

void Checks::compare_losses(const Step& step) {
  if (step.gathers_losses && !parallel_->only_tensor_parallel) gather_losses();
  for (const char* loss : {"loss", "other"}) {
    if (loss[0] == 'o' && !program_.beside_replicated) continue;
    std::string list;
    for (std::size_t k = 0; k < step.microbatches.size(); ++k)
      list += str(list.empty() ? "" : ", ", "detach(", loss, "_", k, ")");
    compare(str("[", list, "]"), str("losses[", me_, "]"));
  }
}

void Checks::compare_models() {
  if (parallel_->api == Api::flat_shard) {
    Json inner = Json::array();
    Json outer = std::exchange(steps_, Json::array());
    compare_test();
    inner = std::exchange(steps_, std::move(outer));
    steps_.push_back(
        {{"summon_full_parameters", {{"model", "test"}, {"gradients", true}, {"writeback", false}}}, {"steps", inner}});
  } else {
    compare_test();
  }
  if (program_.beside_replicated) compare_plainly("replicated");
  if (program_.beside_replicated && promises_buffers(program_)) compare("buffers(test)", "buffers(replicated)");
}

// With offload the shards are on the host.
void Checks::compare_test() {
  if (!is_on_host()) return compare_plainly("test");
  compare("[detach(p) for p in parameters(test)]", "[to(detach(p), 'cpu') for p in parameters(alone)]");
  compare_gradients("[p.grad for p in parameters(test) if p.grad != none]",
                    "[to(p.grad, 'cpu') for p in parameters(alone) if p.grad != none]");
}

// The rank alone has seen the batches of all ranks, so its running statistics are others.
void Checks::compare_plainly(const std::string& model) {
  if (!program_.model.has_buffers) return compare_gradients(model, "alone");
  compare(str("[detach(p) for p in parameters(", model, ")]"), "[detach(p) for p in parameters(alone)]");
  compare_gradients(str("[p.grad for p in parameters(", model, ") if p.grad != none]"),
                    "[p.grad for p in parameters(alone) if p.grad != none]");
}

bool Checks::is_on_host() const { return !parallel_->offload.empty() && program_.device != "cpu"; }

void Checks::compare_states() {
  const bool has_state = program_.optimizer.type != "SGD" || !program_.optimizer.momentum.empty();
  if (!has_state || parallel_->api == Api::flat_shard || !program_.optimizer.own_group.empty()) return;
  if (is_on_host())
    compare_gradients("tensors(test_optimizer)", "[to(t, 'cpu') for t in tensors(alone_optimizer)]");
  else
    compare_gradients("tensors(test_optimizer)", "tensors(alone_optimizer)");
}

}  // namespace lockstep::fuzz
