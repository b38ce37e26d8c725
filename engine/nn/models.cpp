// The models of the documents. Children are built, and draw their weights, in the written order.
#include "engine/nn/models.hpp"

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/nn/layers.hpp"

namespace lockstep::nn {

std::vector<std::string> Composed::methods() const {
  std::vector<std::string> names = {"forward"};
  for (const auto& [name, method] : others_) names.push_back(name);
  return names;
}

ModulePtr Composed::clone_shell() const {
  auto made = std::make_shared<Composed>(type(), forward_, reset_);
  made->others_ = others_;
  return made;
}

Structure Composed::run(std::string_view method, const Inputs& inputs) {
  for (const auto& [name, other] : others_)
    if (name == method) return other(*this, inputs);
  require_forward(*this, method);
  return forward_(*this, inputs);
}

namespace {

using Modules = std::vector<ModulePtr>;

ModulePtr linear(std::int64_t in, std::int64_t out, const BuildOptions& options, bool bias = true) {
  return created<Linear>(options, in, out, bias);
}

Tensor normal(const Dims& sizes, const BuildOptions& options, device::Purpose purpose) {
  const device::PurposeScope scope(purpose);
  return randn(sizes, options.dtype, options.device);
}

ModulePtr net(const Arguments&, const BuildOptions& options, const Modules&) {
  auto made = std::make_shared<Composed>("Net", [](Composed& m, const Inputs& inputs) {
    return m.call_child("fc3", m.call_child("fc2", m.call_child("fc1", only_input(m, "forward", inputs))));
  });
  for (const char* name : {"fc1", "fc2", "fc3"}) made->add_child(name, linear(2, 2, options));
  return made;
}

ModulePtr my_net(const Arguments&, const BuildOptions& options, const Modules&) {
  auto made = std::make_shared<Composed>("MyNet", [](Composed& m, const Inputs& inputs) -> Structure {
    static const std::vector<ArgumentInfo> declared = {{"x", true, {}}, {"kwarg", false, {}}};
    const Arguments args("MyNet.forward", declared, inputs);
    const Tensor& x = args.tensor("x");
    return m.call_child("a", args["kwarg"].is_none() ? x : ops::matmul(x, args.tensor("kwarg")));
  });
  made->add_child("a", linear(2, 2, options));
  return made;
}

ModulePtr unit_module(const BuildOptions& options) {
  auto made = std::make_shared<Composed>("UnitModule", [](Composed& m, const Inputs& inputs) {
    return m.call_child("l2", m.call_child("seq", m.call_child("l1", only_input(m, "forward", inputs))));
  });
  made->add_child("l1", linear(100, 100, options));
  made->add_child("seq", std::make_shared<Sequential>(
                             Modules{std::make_shared<ReLU>(), linear(100, 100, options), std::make_shared<ReLU>()}));
  made->add_child("l2", linear(100, 100, options));
  return made;
}

ModulePtr composite_model(const Arguments&, const BuildOptions& options, const Modules&) {
  auto made = std::make_shared<Composed>("CompositeModel", [](Composed& m, const Inputs& inputs) {
    return m.call_child("l2",
                        m.call_child("u2", m.call_child("u1", m.call_child("l1", only_input(m, "forward", inputs)))));
  });
  made->add_child("l1", linear(100, 100, options));
  made->add_child("u1", unit_module(options));
  made->add_child("u2", unit_module(options));
  made->add_child("l2", linear(100, 100, options));
  return made;
}

ModulePtr composite_param_model(const Arguments&, const BuildOptions& options, const Modules&) {
  auto forward = [](Composed& m, const Inputs& inputs) -> Structure {
    const Tensor x = m.call_child("u2", m.call_child("u1", m.call_child("l", only_input(m, "forward", inputs))));
    return ops::matmul(x, m.parameter_slot("p")->tensor);
  };
  auto reset = [](Composed& m) {
    const NoGrad no_grad;
    normal_(m.parameter_slot("p")->tensor, 0.0, 1.0);
    normal_(m.buffer_slot("buffer")->tensor, 0.0, 1.0);
  };
  auto made = std::make_shared<Composed>("CompositeParamModel", forward, reset);
  made->add_child("l", linear(100, 100, options));
  made->add_child("u1", unit_module(options));
  made->add_child("u2", unit_module(options));
  {
    const device::PurposeScope purpose(device::Purpose::parameter);
    made->add_parameter("p", empty({100, 100}, options.dtype, options.device));
  }
  const device::PurposeScope purpose(device::Purpose::other);
  made->add_buffer("buffer", empty({100, 100}, options.dtype, options.device));
  made->reset_parameters();
  return made;
}

ModulePtr mlp(std::int64_t dim, std::int64_t mult, bool bias, bool with_buffer, const BuildOptions& options) {
  auto forward = [](Composed& m, const Inputs& inputs) -> Structure {
    const Tensor hidden = ops::relu(m.call_child("in_proj", only_input(m, "forward", inputs)));
    const Tensor z = ops::relu(m.call_child("out_proj", hidden));
    const BufferSlot* buffer = m.buffer_slot("buffer");
    return buffer ? ops::add(z, buffer->tensor) : z;
  };
  auto reset = [](Composed& m) {
    const NoGrad no_grad;
    if (const BufferSlot* buffer = m.buffer_slot("buffer")) normal_(buffer->tensor, 0.0, 1.0);
  };
  auto made = std::make_shared<Composed>("MLP", forward, reset);
  const std::int64_t inner = checked_multiply(mult, dim, "MLP: mult and dim");
  made->add_child("in_proj", linear(dim, inner, options, bias));
  made->add_child("out_proj", linear(inner, dim, options, bias));
  if (with_buffer) made->add_buffer("buffer", normal({dim}, options, device::Purpose::other));
  return made;
}

ModulePtr mlp_stack(const Arguments& args, const BuildOptions& options, const Modules&) {
  Modules children;
  for (const std::int64_t mult : {3, 4, 3}) children.push_back(mlp(args.size("dim"), mult, true, false, options));
  if (args.boolean("seq_parallel")) children.push_back(created<LayerNorm>(options, args.size("dim"), false, 1e-5));
  return std::make_shared<Sequential>(std::move(children), "MLPStack");
}

ModulePtr multi_forward(const Arguments&, const BuildOptions& options, const Modules&) {
  auto made = std::make_shared<Composed>("MultiForwardModule", [](Composed& m, const Inputs& inputs) -> Structure {
    const Tensor& x = only_input(m, "forward", inputs);
    const Tensor once = m.call_child("inner", x);
    return m.call_child("outer", ops::add(once, m.call_child("inner", x)));
  });
  made->add_child("inner", linear(4, 4, options));
  made->add_child("outer", linear(4, 5, options));
  return made;
}

ModulePtr simple_model(const Arguments&, const BuildOptions& options, const Modules&) {
  auto made = std::make_shared<Composed>("SimpleModel", [](Composed& m, const Inputs& inputs) {
    return m.call_child(
        "net3", m.call_child("net2", m.call_child("relu", m.call_child("net1", only_input(m, "forward", inputs)))));
  });
  made->add_child("net1", linear(5, 8, options));
  made->add_child("relu", std::make_shared<ReLU>());
  made->add_child("net2", linear(8, 4, options));
  made->add_child("net3", linear(4, 12, options));
  return made;
}

ModulePtr mlp_module(const Arguments&, const BuildOptions& options, const Modules&) {
  RankContext::current().generator().seed(5);  // all ranks draw the same weights
  auto made = std::make_shared<Composed>("MLPModule", [](Composed& m, const Inputs& inputs) {
    return m.call_child("net2", m.call_child("relu", m.call_child("net1", only_input(m, "forward", inputs))));
  });
  made->add_child("net1", linear(10, 16, options));
  made->add_child("relu", std::make_shared<ReLU>());
  made->add_child("net2", linear(16, 10, options));
  return made;
}

// (N, 3, H, W) to (N, patches, 1024): one row per patch of 14 x 14 pixels.
Structure patches_of(Composed& m, const Inputs& inputs) {
  return ops::transpose(ops::flatten(m.child("patch_proj")->call(inputs).tensor(), 2), 1, 2);
}

ModulePtr vision_transformer(const BuildOptions& options) {
  auto made = std::make_shared<Composed>("VisionTransformer", [](Composed& m, const Inputs& inputs) -> Structure {
    return ops::sum(m.call(inputs, "forward_features").tensor(), {1}, false);
  });
  made->add_method("forward_features", patches_of);
  made->add_child("patch_proj", created<Conv2d>(options, Conv2d::Settings{3, 1024, 14, 14, 0, true}));
  return made;
}

ModulePtr vit(const Arguments&, const BuildOptions& options, const Modules&) {
  auto made = std::make_shared<Composed>("ViT", [](Composed& m, const Inputs& inputs) {
    return m.call_child("projector", m.child("vit")->call(inputs, "forward_features").tensor());
  });
  made->add_child("vit", vision_transformer(options));
  made->add_child("projector", linear(1024, 256, options));
  return made;
}

}  // namespace

std::vector<Builder> model_builders() {
  return {
      {{"Net", {}, "fc1, fc2, fc3: three Linear(2, 2) in sequence"}, net},
      {{"MyNet", {}, "a: Linear(2, 2) of x, or of x @ kwarg if kwarg is given"}, my_net},
      {{"UnitModule", {}, "l1, seq (ReLU, Linear, ReLU), l2, all of width 100"},
       [](const Arguments&, const BuildOptions& options, const Modules&) { return unit_module(options); }},
      {{"CompositeModel", {}, "l1, two UnitModules u1 and u2, l2"}, composite_model},
      {{"CompositeParamModel", {}, "l, two UnitModules, then a product with parameter p; and an unused buffer"},
       composite_param_model},
      {{"MLP",
        {{"dim", true, {}}, {"mult", false, 4}, {"bias", false, true}, {"buffer", false, false}},
        "in_proj, ReLU, out_proj, ReLU, and optionally an added buffer"},
       [](const Arguments& args, const BuildOptions& options, const Modules&) {
         return mlp(args.size("dim"), args.size("mult"), args.boolean("bias"), args.boolean("buffer"), options);
       }},
      {{"MLPStack",
        {{"dim", true, {}}, {"seq_parallel", false, false}},
        "three MLPs with inner widths 3, 4 and 3 times dim; with seq_parallel also a LayerNorm without bias"},
       mlp_stack},
      {{"MultiForwardModule", {}, "inner runs twice, outer takes the sum of its outputs"}, multi_forward},
      {{"SimpleModel", {}, "net1, relu, net2, net3: widths 5, 8, 4, 12"}, simple_model},
      {{"MLPModule", {}, "net1, relu, net2: widths 10, 16, 10; seeds the generator with 5"}, mlp_module},
      {{"VisionTransformer",
        {},
        "patch_proj; forward_features returns patches of width 1024, forward returns their sum"},
       [](const Arguments&, const BuildOptions& options, const Modules&) { return vision_transformer(options); }},
      {{"ViT", {}, "vit (a VisionTransformer) and a projector of its forward_features to width 256"}, vit},
  };
}

}  // namespace lockstep::nn
