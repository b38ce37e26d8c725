// The Transformer of the documents. Children are built, and draw their weights, in the written order.
#include "engine/autograd/ops.hpp"
#include "engine/core/checked.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/nn/checkpoint.hpp"
#include "engine/nn/layers.hpp"
#include "engine/nn/models.hpp"

namespace lockstep::nn {

namespace {

struct Settings {
  std::int64_t num_layers, vocab_size, max_seq_len, dim, num_heads;
  double dropout;
  bool causal, tied, checkpointed;
};

// (B, S, heads * width) to (B, heads, S, width). The number of heads follows from x, because with tensor parallelism a
// rank has some of the heads. x may be sharded along the batch or the heads.
Tensor split_heads(const Tensor& x, std::int64_t width) {
  const Dims& sizes = global_sizes(x);
  return ops::transpose(ops::view(x, {sizes[0], sizes[1], -1, width}), 1, 2);
}

ModulePtr attention(const Settings& settings, const BuildOptions& options) {
  const std::int64_t dim = settings.dim, width = dim / settings.num_heads;
  auto forward = [width, settings](Composed& m, const Inputs& inputs) -> Structure {
    const Tensor& x = only_input(m, "forward", inputs);
    const Tensor queries = split_heads(m.call_child("wq", x), width);
    const Tensor keys = split_heads(m.call_child("wk", x), width);
    const Tensor values = split_heads(m.call_child("wv", x), width);
    const double dropout = m.training ? settings.dropout : 0.0;
    const Tensor heads = ops::transpose(ops::attention(queries, keys, values, settings.causal, dropout), 1, 2);
    const Tensor joined = ops::flatten(heads, 2, 3);
    return m.call_child("resid_dropout", m.call_child("wo", joined));
  };
  auto made = std::make_shared<Composed>("Attention", forward);
  for (const char* name : {"wq", "wk", "wv", "wo"}) {
    const auto linear = created<Linear>(options, dim, dim, false);
    if (std::string_view(name) != "wo") linear->num_heads = settings.num_heads;
    made->add_child(name, linear);
  }
  made->add_child("resid_dropout", std::make_shared<Dropout>(settings.dropout));
  return made;
}

ModulePtr feed_forward(const Settings& settings, const BuildOptions& options) {
  auto made = std::make_shared<Composed>("FeedForward", [](Composed& m, const Inputs& inputs) {
    return m.call_child("resid_dropout",
                        m.call_child("w2", m.call_child("gelu", m.call_child("w1", only_input(m, "forward", inputs)))));
  });
  const std::int64_t inner = checked_multiply(4, settings.dim, "FeedForward: dim");
  made->add_child("w1", created<Linear>(options, settings.dim, inner, true));
  made->add_child("gelu", std::make_shared<Gelu>());
  made->add_child("w2", created<Linear>(options, inner, settings.dim, true));
  made->add_child("resid_dropout", std::make_shared<Dropout>(settings.dropout));
  return made;
}

ModulePtr block(const Settings& settings, const BuildOptions& options) {
  auto made = std::make_shared<Composed>("TransformerBlock", [](Composed& m, const Inputs& inputs) -> Structure {
    const Tensor& x = only_input(m, "forward", inputs);
    const Tensor h = ops::add(x, m.call_child("attention", m.call_child("attention_norm", x)));
    return ops::add(h, m.call_child("feed_forward", m.call_child("ffn_norm", h)));
  });
  made->add_child("attention_norm", created<LayerNorm>(options, settings.dim, true, 1e-5));
  made->add_child("attention", attention(settings, options));
  made->add_child("ffn_norm", created<LayerNorm>(options, settings.dim, true, 1e-5));
  made->add_child("feed_forward", feed_forward(settings, options));
  return made;
}

// Layers with activation checkpoints: each layer is recomputed in backward.
class CheckpointedLayers : public Sequential {
 public:
  ModulePtr clone_shell() const override { return std::make_shared<CheckpointedLayers>(); }

 protected:
  Structure run(std::string_view method, const Inputs& inputs) override {
    require_forward(*this, method);
    Structure x = only_input(*this, method, inputs);
    for (const ChildSlot& layer : children)
      x = checkpoint([module = layer.module](const Inputs& in) { return module->call(in); },
                     Inputs{{std::move(x)}, {}});
    return x;
  }
};

// tokens (B, S), int64, to logits (B, S, vocab_size), float32.
Structure predict(Composed& m, const Inputs& inputs) {
  const Tensor& tokens = only_input(m, "forward", inputs);
  if (tokens.num_dims() != 2)
    throw Error(str("Transformer.forward: tokens of sizes ", to_text(tokens.sizes())), "give (batch, sequence)");
  const Tensor positions = arange(0, static_cast<double>(tokens.size(1)), 1, DType::int64, tokens.device());
  // Evaluated first, because the evaluation order of function arguments is unspecified.
  const Tensor of_tokens = m.call_child("tok_embeddings", tokens);
  const Tensor embedded = ops::add(of_tokens, m.call_child("pos_embeddings", positions));
  const Tensor h = m.call_child("layers", m.call_child("dropout", embedded));
  return ops::cast(m.call_child("output", m.call_child("norm", h)), DType::float32);
}

ModulePtr transformer(const Arguments& args, const BuildOptions& options, const std::vector<ModulePtr>&) {
  const Settings settings = {args.size("n_layers"),
                             args.size("vocab_size"),
                             args.size("max_seq_len"),
                             args.size("dim"),
                             args.size("n_heads"),
                             args.number("dropout_p"),
                             args.boolean("use_attn_mask"),
                             args.boolean("weight_tying"),
                             args.boolean("checkpoint_activations")};
  if (settings.dim % settings.num_heads != 0)
    throw Error(str("Transformer: dim is ", settings.dim, ", n_heads ", settings.num_heads), "n_heads must divide dim");
  auto made = std::make_shared<Composed>("Transformer", predict);
  made->add_child("tok_embeddings", created<Embedding>(options, settings.vocab_size, settings.dim));
  made->add_child("pos_embeddings", created<Embedding>(options, settings.max_seq_len, settings.dim));
  made->add_child("dropout", std::make_shared<Dropout>(settings.dropout));
  const std::shared_ptr<Sequential> layers =
      settings.checkpointed ? std::make_shared<CheckpointedLayers>() : std::make_shared<Sequential>();
  for (std::int64_t i = 0; i < settings.num_layers; ++i) layers->add_child(str(i), block(settings, options));
  made->add_child("layers", layers);
  made->add_child("norm", created<LayerNorm>(options, settings.dim, true, 1e-5));
  made->add_child("output", created<Linear>(options, settings.dim, settings.vocab_size, false));
  // The shared weight replaces the weight that the output drew.
  if (settings.tied) made->child("output")->parameters[0].tensor = made->child("tok_embeddings")->parameters[0].tensor;
  return made;
}

}  // namespace

std::vector<Builder> transformer_builders() {
  return {{{"Transformer",
            {{"n_layers", false, 2},
             {"vocab_size", false, 8},
             {"max_seq_len", false, 16},
             {"dim", false, 16},
             {"n_heads", false, 4},
             {"dropout_p", false, 0.1},
             {"use_attn_mask", false, true},
             {"weight_tying", false, true},
             {"checkpoint_activations", false, false}},
            "tok_embeddings, pos_embeddings, dropout, layers, norm, output; the output shares the weight of "
            "tok_embeddings"},
           transformer}};
}

}  // namespace lockstep::nn
