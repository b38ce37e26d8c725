// Operations on sharded tensors compared with the same operations on full tensors: values, gradients, collectives. And:
// no operation drops a layout.
#include "engine/autograd/ops_sharded.hpp"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/op_registry.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/autograd/ops_on_sharded.hpp"
#include "engine/autograd/ops_sharded_testing.hpp"
#include "engine/comm/attribution.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep {
namespace {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using layout::partial;
using layout::PartialOp;
using layout::replicate;
using layout::shard;
using layout::strided_shard;
using sharded_testing::count_since;
using sharded_testing::require_close;
using sharded_testing::require_error;
using sharded_testing::values;
using ::testing::Each;

using Function = std::function<Tensor(const Tensor& a, const Tensor& b)>;
const std::vector<std::pair<const char*, Function>> functions = {
    {"add", [](const Tensor& a, const Tensor& b) { return ops::add(a, b); }},
    {"sub", [](const Tensor& a, const Tensor& b) { return ops::sub(ops::mul(a, 3.0), ops::sub(b, 0.5)); }},
    {"mul", [](const Tensor& a, const Tensor& b) { return ops::mul(ops::add(a, 1.0), b); }},
    {"div", [](const Tensor& a, const Tensor& b) { return ops::div(ops::rsub(1.0, a), ops::rdiv(2.0, b)); }},
    {"functions",
     [](const Tensor& a, const Tensor& b) {
       return ops::add(ops::exp(ops::neg(a)), ops::add(ops::log(ops::abs(b)), ops::sqrt(ops::pow(a, 2.0))));
     }},
    {"activations",
     [](const Tensor& a, const Tensor& b) {
       return ops::add(ops::relu(ops::gelu(a)), ops::mul(ops::tanh(b), ops::sigmoid(ops::rsqrt(a))));
     }},
    {"same tensor twice", [](const Tensor& a, const Tensor& b) { return ops::mul(ops::mul(a, a), b); }},
    {"copies",
     [](const Tensor& a, const Tensor& b) {
       return ops::cast(ops::cast(ops::add(ops::clone(a), ops::contiguous(b)), DType::float32), DType::float64);
     }},
    {"transpose", [](const Tensor& a, const Tensor& b) { return ops::transpose(ops::mul(a, b), 0, 1); }},
    {"where", [](const Tensor& a, const Tensor& b) { return ops::where(ops::gt(a, b), a, ops::mul(b, 2.0)); }},
    {"unsqueeze", [](const Tensor& a, const Tensor& b) { return ops::unsqueeze(ops::mul(a, b), -2); }},
    {"mse_loss", [](const Tensor& a, const Tensor& b) { return ops::mse_loss(a, b); }},
    {"mean of a dim", [](const Tensor& a, const Tensor& b) { return ops::mean(ops::mul(a, b), Dims{0}, true); }},
    {"sum of a dim",
     [](const Tensor& a, const Tensor& b) { return ops::pow(ops::sum(ops::mul(a, b), Dims{-1}, false), 2.0); }},
    {"scaled by a sum", [](const Tensor& a, const Tensor& b) { return ops::div(b, ops::sum(a)); }},
};

// Compares a function of two sharded leaves with the same function of full ones.
void compare(const DeviceMesh& mesh, const Placements& placements, const Dims& sizes, const char* name,
             const Function& f) {
  const std::string what = str(name, " of ", to_text(sizes), " as ", layout::to_text(placements));
  Tensor plain[2] = {values(sizes), values(sizes, 0.7)}, sharded[2];
  for (int i = 0; i < 2; ++i) {
    sharded[i] = distribute(plain[i], mesh, placements);
    set_requires_grad(plain[i], true);
    set_requires_grad(sharded[i], true);
  }
  const Tensor expected = f(plain[0], plain[1]), result = f(sharded[0], sharded[1]);
  require(result.is_sharded(), str(what, ": the result is plain"));
  require_close(detach(ops::full_tensor(result)), expected, what);
  backward({ops::sum(ops::mul(expected, expected))});
  const Tensor loss = ops::sum(ops::mul(result, result));
  require(loss.is_sharded(), "a sum is sharded");
  backward({loss});
  for (int i = 0; i < 2; ++i) {
    const Tensor gradient = grad(sharded[i]);
    require(gradient.defined() && gradient.is_sharded(), str(what, ": no sharded gradient"));
    require(*gradient.layout() == *layout::gradient_layout(sharded[i].layout()), str(what, ": its layout"));
    require_close(full_tensor(gradient), grad(plain[i]), str(what, ": gradient"));
  }
}

TEST(OpsSharded, AgreeWithOperationsOnFullTensors) {
  const auto failures = comm::testing_ranks::run_ranks(4, Kind::threads, [](int) {
    const DeviceMesh mesh({2, 2}, {"dp", "tp"});
    for (const Placements& placements :
         {Placements{shard(0), replicate()}, Placements{shard(0), shard(1)}, Placements{strided_shard(0, 2), shard(0)},
          Placements{replicate(), replicate()}, Placements{replicate(), shard(1)}})
      for (const Dims& sizes : {Dims{5, 3}, Dims{4, 4}, Dims{1, 3}})
        for (const auto& [name, f] : functions) compare(mesh, placements, sizes, name, f);
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, KeepPartialResultsThroughLinearOperations) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"tp"});
    const Tensor plain = values({5, 2});
    const Tensor a = distribute(plain, mesh, {shard(0)});
    const std::size_t position = comm::log().size();
    const Tensor total = ops::sum(ops::mul(a, a));
    require(total.layout()->placements == Placements{partial()}, "a sum over a sharded dim is partial");
    require(total.layout()->sizes == Dims(), "the sum is a scalar");
    const Tensor twice = ops::sub(ops::mul(ops::neg(total), -3.0), ops::div(total, 1.0));
    require(twice.layout()->placements == Placements{partial()}, "linear operations keep it partial");
    require(comm::log().size() == position, "no communication");
    const Tensor norm = ops::sqrt(total);
    require(norm.layout()->placements == Placements{replicate()}, "a square root needs the reduced value");
    require(comm::log().size() == position + 1 && comm::log().back().operation == comm::Operation::all_reduce,
            "one all_reduce");
    require_close(detach(full_tensor(norm)), raw::sqrt(raw::sum(raw::mul(plain, plain))), "norm");
    require_close(detach(full_tensor(twice)), raw::mul(raw::sum(raw::mul(plain, plain)), 2.0), "twice");
    // A constant is added to the reduced value, not to every summand.
    require_close(full_tensor(ops::add(total, 1.0)), raw::add(raw::sum(raw::mul(plain, plain)), 1.0), "plus 1");
  });
  EXPECT_THAT(failures, Each(""));
}

// Backward of each redistribution: the values of the derivative of the identity, and its collectives.
TEST(OpsSharded, RedistributionsHaveRedistributionsAsDerivatives) {
  const auto failures = comm::testing_ranks::run_ranks(3, Kind::threads, [](int rank) {
    const DeviceMesh mesh({3}, {"tp"});
    const Tensor weights = values({4, 5}, 1.5);
    using comm::Operation;
    struct Way {
      layout::Placement from, to;
      std::vector<Operation> forward, backward;
    };
    const std::vector<Way> ways = {
        {shard(0), replicate(), {Operation::all_gather}, {}},
        {replicate(), shard(1), {}, {Operation::all_gather}},
        {shard(0), shard(1), {Operation::all_to_all}, {Operation::all_to_all}},
        {partial(), replicate(), {Operation::all_reduce}, {}},
        {partial(), shard(0), {Operation::reduce_scatter}, {Operation::all_gather}},
        {partial(PartialOp::mean), shard(1), {Operation::reduce_scatter}, {Operation::all_gather}},
        {replicate(), partial(), {}, {}},
        {replicate(), partial(PartialOp::mean), {}, {}},
    };
    for (const Way& way : ways) {
      const std::string what = str(layout::to_text(way.from), " to ", layout::to_text(way.to));
      // The local shard is the leaf, so its gradient is the gradient of the contribution of this rank.
      const Tensor local = raw::clone(local_tensor(distribute(values({4, 5}), mesh, {way.from})));
      set_requires_grad(local, true);
      const Dims sizes{4, 5};
      const Tensor start = ops::from_local(local, mesh, {way.from}, &sizes);
      std::size_t position = comm::log().size();
      const Tensor end = ops::redistribute(start, {way.to});
      std::vector<Operation> seen;
      const auto collect = [&] {
        seen.clear();
        for (std::size_t i = position; i < comm::log().size(); ++i) {
          require(comm::log()[i].family == comm::Family::tensor_parallel, "family");
          seen.push_back(comm::log()[i].operation);
        }
      };
      collect();
      require(seen == way.forward, str(what, ": forward"));
      // The loss is sum(full * weights); every layout counts each element once.
      Tensor gradient = distribute(weights, mesh, {way.to.is_partial() ? replicate() : way.to});
      if (way.to == partial(PartialOp::mean))
        gradient = make_sharded(raw::div(local_tensor(gradient), 3.0), gradient.layout());
      position = comm::log().size();
      backward({end}, {gradient});
      collect();
      require(seen == way.backward, str(what, ": backward"));
      Tensor expected = way.from.is_partial() ? weights : local_tensor(distribute(weights, mesh, {way.from}));
      if (way.from == partial(PartialOp::mean)) expected = raw::div(expected, 3.0);
      require_close(grad(local), expected, str(what, " rank ", rank));
    }
    const Tensor largest = distribute(weights, mesh, {partial(PartialOp::max)});
    set_requires_grad(largest, true);
    require_error([&] { ops::redistribute(largest, {replicate()}); }, "Partial(max) has no derivative");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(Redistribution, IssuesCollectivesForTheOwnerOfItsForward) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"tp"});
    const Tensor weight = distribute(values({4, 2}), mesh, {shard(0)});
    set_requires_grad(weight, true);
    const auto owners_since = [](std::size_t position) {
      std::vector<std::string> owners;
      for (std::size_t i = position; i < comm::log().size(); ++i) owners.push_back(comm::log()[i].owner);
      return owners;
    };
    const std::size_t position = comm::log().size();
    Tensor other, full;
    {
      const comm::AttributionScope outer({comm::Family::tensor_parallel, "net"});
      {
        const comm::AttributionScope inner({comm::Family::tensor_parallel, "net.fc"});
        other = ops::redistribute(weight, {shard(1)});
      }
      full = ops::full_tensor(other);
    }
    require(ops::full_tensor(ops::redistribute(weight, {shard(1)})).sizes() == Dims({4, 2}), "full sizes");
    require(owners_since(position) == std::vector<std::string>({"net.fc", "net", "", ""}), "owners of forward");
    const std::size_t before_backward = comm::log().size();
    backward({ops::sum(full)});
    require(owners_since(before_backward) == std::vector<std::string>({"net.fc"}), "owner of backward");
    require(comm::current_attribution() == nullptr, "the scopes have ended");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, GradientsAccumulateInTheLayoutOfTheTensor) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int rank) {
    const DeviceMesh mesh({2}, {"dp"});
    const Tensor plain = values({3, 2}), other = values({3, 2}, 2.0);
    set_requires_grad(plain, true);
    const Tensor a = ops::distribute(plain, mesh, {shard(0)});
    require(!is_leaf(a), "recorded");
    std::size_t position = comm::log().size();
    backward({ops::sum(ops::mul(ops::full_tensor(a), other))});
    require(count_since(position, comm::Operation::all_gather, comm::Phase::backward) == 1, "full_tensor: one gather");
    require_close(grad(plain), other, "gradient of the full tensor");

    const Tensor leaf = distribute(detach(plain), mesh, {shard(0)});
    set_requires_grad(leaf, true);
    for (int pass = 0; pass < 2; ++pass) backward({ops::sum(ops::mul(ops::full_tensor(leaf), other))});
    require(grad(leaf).is_sharded() && grad(leaf).sizes() == Dims({2 - rank, 2}), "a sharded gradient");
    require_close(full_tensor(grad(leaf)), raw::mul(other, 2.0), "twice");
    position = comm::log().size();
    accumulate_grad(leaf, grad(leaf));
    require(comm::log().size() == position, "no communication");
    require_close(full_tensor(grad(leaf)), raw::mul(other, 4.0), "and again");

    require_error([&] { set_grad(leaf, local_tensor(grad(leaf))); }, "which is float64 (3, 2) as (Shard(0)) on dp 2");
    set_grad(leaf, Tensor());
    require(!grad(leaf).defined(), "removed");
    set_grad(leaf, distribute(other, mesh, {shard(0)}));
    require_close(full_tensor(grad(leaf)), other, "set");
    const Tensor column = ops::mul(leaf, 1.0);
    require_error([&] { backward({column}, {local_tensor(column)}); }, "give a gradient in the layout of the root");
    require_error([&] { backward({ops::sum(leaf, Dims{0}, false)}); }, "is not a scalar");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, ChangeTensorsOfOneLayoutInPlace) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"dp"});
    const Tensor plain = values({3, 2}), other = values({3, 2}, 2.0);
    const Tensor a = distribute(plain, mesh, {shard(0)}), b = distribute(other, mesh, {shard(0)});
    ops::add_(a, b, 2.0);
    ops::mul_(a, b);
    ops::sub_(a, b);
    ops::mul_(a, 0.5);
    const Tensor expected = raw::mul(raw::sub(raw::mul(raw::add(plain, raw::mul(other, 2.0)), other), other), 0.5);
    require_close(full_tensor(a), expected, "changed in place");
    ops::copy_(a, b);
    require_close(full_tensor(a), other, "copied");
    ops::zero_(a);
    require(to_doubles(full_tensor(a)) == std::vector<double>(6, 0.0), "zeroed");
    require(a.is_sharded(), "still sharded");
    require_error([&] { ops::copy_(a, other); }, "copy_: a sharded operand, float64 (3, 2) as (Shard(0)) on dp 2");
    require_error([&] { ops::copy_(a, other); }, "distribute the plain one");
    require_error([&] { ops::add_(a, distribute(other, mesh, {shard(1)})); }, "to the layout of the other");
    const Tensor summands = distribute(other, mesh, {partial()});
    require_error([&] { ops::mul_(summands, summands); }, "redistribute it first");
    set_requires_grad(a, true);
    require_error([&] { ops::zero_(a); }, "while recording");
    const Tensor changed = ops::mul(a, 2.0);
    ops::mul_(changed, b);
    ops::add_(changed, a);
    backward({ops::sum(ops::full_tensor(changed))});
    require_close(full_tensor(grad(a)), raw::add(raw::mul(other, 2.0), 1.0), "the gradient of a changed tensor");
    require_error([&] { ops::zero_(ops::select(changed, 1, 0)); }, "is a view of a sharded tensor");
    require_error([&] { ops::zero_(ops::to_local(changed)); }, "is a view of a sharded tensor");
  });
  EXPECT_THAT(failures, Each(""));
}

TEST(OpsSharded, RefuseMixedOperandsAndOperationsWithoutARule) {
  const auto failures = comm::testing_ranks::run_ranks(2, Kind::threads, [](int) {
    const DeviceMesh mesh({2}, {"tp"}), other_mesh({2}, {"dp"});
    const Tensor plain = values({4, 2});
    const Tensor a = distribute(plain, mesh, {shard(0)}), b = distribute(plain, mesh, {shard(1)});
    require_error([&] { ops::add(a, plain); },
                  "add: a sharded operand, float64 (4, 2) as (Shard(0)) on tp 2, on cpu and a plain operand, float64 "
                  "(4, 2) on cpu (distribute the plain one over the mesh, or take full_tensor or the local shard");
    require_error([&] { ops::mul(plain, a); }, "mul: a plain operand");
    require_error([&] { ops::sub(a, b); }, "redistribute one of them to the layout of the other");
    require_error([&] { ops::sub(a, distribute(plain, other_mesh, {shard(0)})); }, "on dp 2");
    require_error([&] { ops::matmul(a, plain); }, "matmul: a sharded operand");
    require_error([&] { ops::softmax(a, 0); }, "softmax: along dim 0 of (4, 2) as (Shard(0)) on tp 2");
    require(ops::softmax(a, 1).is_sharded(), "along a replicated dim");
    require_error([&] { ops::matmul(a, ops::transpose(a, 0, 1)); }, "on each axis replicate one");
    require_error([&] { ops::linear(a, a, nullptr); }, "matmul: (4, 2) as (Shard(0)) on tp 2");
    require_error([&] { ops::layer_norm(b, 1, nullptr, nullptr); }, "redistribute it so that no axis shards them");
    require_error([&] { ops::cross_entropy(a, b); }, "give logits (..., classes) and targets (...)");
    require_error([&] { ops::select(a, 0, 0); }, "select: along dim 0 of (4, 2) as (Shard(0)) on tp 2");
    require_error([&] { ops::cat({plain, a}, 0); }, "cat: a plain operand");
    require_error([&] { ops::cat({a, b}, 0); }, "redistribute them to the same placements");
    const Tensor uneven = distribute(values({4, 3}), mesh, {shard(0)});
    require_error(
        [&] {
          ops::reshape(uneven, {3, 4});
        },
        "reshape: (4, 3) as (Shard(0)) on tp 2 to (3, 4): the shards of dim 0 are no shards of the result");
    require_error(
        [&] { ops::require_plain("unfold", a, plain); },
        "unfold: there is no rule for sharded tensors: a sharded operand, float64 (4, 2) as (Shard(0)) on tp 2");
    ops::require_plain("unfold", plain);
    require_error([&] { ops::conv2d(a, a, nullptr); }, "conv2d: x float64 (4, 2) as (Shard(0)) on tp 2");
  });
  EXPECT_THAT(failures, Each(""));
}

// Every operation of the registry either returns a sharded result or refuses by name.
TEST(OpsSharded, NeverDropALayout) {
  RankContext context{0, 1};
  RankScope scope(context);
  const DeviceMesh mesh({1}, {"dp"});
  int num_results = 0, num_refused = 0;
  for (const ops::OpCase& op : ops::op_registry()) {
    for (const ops::OpVariant& variant : op.variants)
      for (const layout::Placement& placement : {shard(0), replicate(), partial()}) {
        Generator generator;
        generator.seed(3);
        std::vector<Tensor> inputs;
        bool fits = true;
        for (const ops::OpInput& input : variant.inputs) {
          const Tensor plain = ops::make_input(input, DType::float32, {}, generator);
          fits = fits && !(placement.is_shard() && plain.num_dims() == 0);
          if (fits) inputs.push_back(distribute(plain, mesh, {placement}));
        }
        if (!fits) continue;
        std::string error;
        try {
          const Tensor result = variant.run(inputs);
          EXPECT_TRUE(result.is_sharded()) << op.name << ", " << variant.name << ", " << to_text(placement);
          ++num_results;
        } catch (const InternalError& broken) {
          ADD_FAILURE() << op.name << ": " << broken.what();
        } catch (const Error& refused) {
          EXPECT_THAT(refused.what(),
                      ::testing::AnyOf(::testing::HasSubstr("as (Shard("), ::testing::HasSubstr("(Replicate)"),
                                       ::testing::HasSubstr("(Partial(sum))")))
              << op.name << ", " << variant.name;
          ++num_refused;
        }
      }
  }
  EXPECT_GT(num_results, 60);
  EXPECT_GT(num_refused, 60);
}

}  // namespace
}  // namespace lockstep
