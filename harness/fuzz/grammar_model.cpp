// Models: a Sequential of blocks of small and odd widths, or a Transformer.
#include <algorithm>
#include <array>
#include <optional>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "harness/fuzz/grammar.hpp"

namespace lockstep::fuzz {

namespace {

constexpr std::array<int, 6> widths{4, 3, 2, 5, 8, 7};

// The kinds of blocks; the values of the choice `kind`.
enum Kind {
  linear,
  without_bias,
  relu,
  gelu,
  mlp,
  layer_norm,
  rms_norm,
  residual,
  twice,
  scaled,
  spare,
  fan,
  nested,
  tied,
  dropout,
  batch_norm,
  written
};

// Builds a Sequential block by block and follows the width.
class Blocks {
 public:
  explicit Blocks(bool tensor_parallel, int axis_size) : tensor_parallel_(tensor_parallel), axis_size_(axis_size) {}

  void add(Chooser choose) {
    // The output of a LayerNorm of two values is their order, and the gradient through it is rounding. Without the same
    // bits it is another one.
    const bool is_rounding = tensor_parallel_ && width_ == 2;
    const auto kind = static_cast<Kind>(
        choose.pick("kind", {14, 6, 8, 5, 10, is_rounding ? 0 : 6, 4, 8, 6, 5, tensor_parallel_ ? 0 : 4, 6, 8,
                             tensor_parallel_ ? 0 : 4, tensor_parallel_ ? 0 : 3, tensor_parallel_ ? 0 : 5, 24}));
    const std::string path = std::to_string(count_++);
    block_ = choose;
    // The output of these is no tensor that backward needs.
    model_.ends_in_linear =
        kind == linear || kind == without_bias || kind == residual || kind == twice || kind == nested;
    model_.output_may_change = model_.ends_in_linear;
    switch (kind) {
      case linear:
        return add_linear(choose, path, true);
      case without_bias:
        return add_linear(choose, path, false);
      case relu:
        return add_plain("ReLU()");
      case gelu:
        return add_plain("GELU()");
      case dropout:
        model_.draws = true;
        return add_plain("Dropout(0.25)");
      case batch_norm:
        model_.has_buffers = model_.has_rounding = true;  // the gradient of a bias before it
        return add_block(path, str("BatchNorm(", width_, ")"), "BatchNorm");
      case layer_norm:
        model_.has_rounding |= width_ == 2;
        return add_block(path, str("LayerNorm(", width_, ")"), "LayerNorm");
      case rms_norm:
        return add_block(path, str("RMSNorm(", width_, ")"), "RMSNorm");
      case mlp:
        return add_mlp(choose, path);
      case nested:
        return add_nested(path);
      case residual:
        return add_defined(path, "Residual", {"inner"});
      case twice:
        add_defined(path, "Twice", {"inner"});
        model_.units.back().runs_again = true;
        return;
      case scaled:
        return add_defined(path, "Scaled", {"inner"});
      case spare:
        return add_spare(path);
      case fan:
        return add_defined(path, "Fan", {"left", "right"});
      case tied:
        return add_tied(path);
      case written:
        return add_written(choose, path);
    }
  }

  void add_only_linear(Chooser choose) {
    block_ = choose;
    model_.output_may_change = model_.ends_in_linear = true;
    add_linear(choose, std::to_string(count_++), true);
  }

  // A convolution of images of 2 channels and 3 x 3 pixels, to rows of the present width.
  void add_image(Chooser choose) {
    block_ = choose;
    const std::string path = std::to_string(count_++);
    const auto channels = choose.number("channels", 1, 5);
    const int pixels = static_cast<int>(bounded_product(std::int64_t{4}, channels));
    define("Image");
    add_block(path, str("Image(", channels, ", ", width_, ")"), "Image");
    add_unit(path + ".conv", "Conv2d");
    add_unit(path + ".norm", "BatchNorm");
    add_unit(path + ".head", "Linear", width_, pixels);
    model_.has_buffers = model_.has_rounding = true;
  }

  DerivedModel finish(const std::string& input) {
    model_.build = str("Sequential(", parts_, ")");
    model_.input = str("randn(rows, ", input, ")");
    return {std::move(model_), std::move(of_units_)};
  }
  int width() const { return width_; }
  void start_with(int width) { width_ = width; }
  bool has_parameters() const { return !model_.blocks.empty(); }
  bool has_buffers() const { return model_.has_buffers; }

 private:
  void add_plain(const std::string& build) { parts_ += (parts_.empty() ? "" : ", ") + build; }

  void add_unit(const std::string& path, const std::string& type, int rows = 0, int columns = 0) {
    model_.units.push_back({.path = path, .type = type, .rows = rows, .columns = columns});
    of_units_.push_back(block_->in("unit" + path.substr(std::min(path.find('.'), path.size()))));
  }

  void add_block(const std::string& path, const std::string& build, const std::string& type) {
    add_plain(build);
    add_unit(path, type);
    model_.blocks.push_back(path);
    model_.units.back().may_recompute = true;
  }

  void add_linear(Chooser choose, const std::string& path, bool bias) {
    const int out = widths[static_cast<std::size_t>(choose.number("width", 0, widths.size() - 1))];
    add_block(path, str("Linear(", width_, ", ", out, bias ? ")" : ", bias=false)"), "Linear");
    model_.units.back().rows = out;
    model_.units.back().columns = width_;
    if (tensor_parallel_ && choose.chance("styled", 60))
      model_.styles.emplace_back(path,
                                 out % axis_size_ == 0 ? "colwise(output=replicate())" : "rowwise(input=replicate())");
    width_ = out;
  }

  void add_mlp(Chooser choose, const std::string& path) {
    const auto mult = choose.number("mult", 2, 3);
    add_block(path, str("MLP(", width_, ", mult=", mult, ")"), "MLP");
    const int hidden = static_cast<int>(bounded_product(std::int64_t{width_}, mult));
    add_unit(path + ".in_proj", "Linear", hidden, width_);
    add_unit(path + ".out_proj", "Linear", width_, hidden);
    if (tensor_parallel_) add_pair(path + ".in_proj", path + ".out_proj", hidden);
  }

  void add_nested(const std::string& path) {
    add_block(path, str("Sequential(Linear(", width_, ", 6), ReLU(), Linear(6, ", width_, "))"), "Sequential");
    add_unit(path + ".0", "Linear", 6, width_);
    model_.units.back().may_recompute = true;
    add_unit(path + ".2", "Linear", width_, 6);
    if (tensor_parallel_) add_pair(path + ".0", path + ".2", 6);
  }

  // Columns of the first Linear and rows of the second: one all-reduce for both.
  void add_pair(const std::string& first, const std::string& second, int hidden) {
    const std::string keep = hidden % axis_size_ == 0 ? "" : "keep_sharded=true";
    model_.styles.emplace_back(first, str("colwise(", keep, ")"));
    model_.styles.emplace_back(second, "rowwise()");
  }

  void define(const std::string& name) {
    for (const std::string& each : model_.definitions)
      if (each == name) return;
    model_.definitions.push_back(name);
  }

  void add_defined(const std::string& path, const std::string& type, const std::vector<std::string>& children) {
    define(type);
    add_block(path, str(type, "(", width_, ")"), type);
    for (const std::string& child : children) {
      const std::string unit = str(path, ".", child);
      add_unit(unit, "Linear", width_, width_);
      if (tensor_parallel_ && width_ % axis_size_ == 0) model_.styles.emplace_back(unit, "colwise(output=replicate())");
    }
  }

  void add_written(Chooser choose, const std::string& path) {
    const std::string name = "Written" + path;
    const DerivedForward derived = derive_forward(choose.in("forward"), name, width_, tensor_parallel_);
    model_.written.push_back(derived.model);
    model_.output_may_change = derived.output_may_change;
    add_block(path, name + "()", name);
    add_unit(path + ".inner", "Linear", width_, width_);
    model_.units.back().runs_again = derived.calls_again;
    if (tensor_parallel_ && width_ % axis_size_ == 0)
      model_.styles.emplace_back(path + ".inner", "colwise(output=replicate())");
  }

  void add_spare(const std::string& path) {
    add_defined(path, "Spare", {"inner", "unused"});
    model_.units.back().is_used = false;
    model_.has_unused = true;
  }

  void add_tied(const std::string& path) {
    define("Tied");
    add_block(path, str("Tied(", width_, ")"), "Tied");
    for (const char* child : {".first", ".second"}) {
      add_unit(path + child, "Linear", width_, width_);
      model_.units.back().may_be_group = false;
    }
    model_.ties.emplace_back(path + ".second.weight", path + ".first.weight");
  }

  bool tensor_parallel_;
  int axis_size_;
  int width_ = 4, count_ = 0;
  std::string parts_;
  Model model_;
  std::vector<Chooser> of_units_;
  std::optional<Chooser> block_;  // of the block that is added
};

DerivedModel transformer(Chooser choose) {
  DerivedModel derived;
  Model& model = derived.model;
  const bool tied = choose.chance("tied", 40), drops = choose.chance("dropout", 20);
  const int heads = static_cast<int>(choose.number("heads", 1, 3));
  const int dim = heads * 4;
  model.draws = drops;
  const auto add = [&](const std::string& path, const std::string& type, Chooser of_unit) -> Unit& {
    derived.of_units.push_back(of_unit);
    return model.units.emplace_back(Unit{.path = path, .type = type});
  };
  std::vector<Chooser> layers = choose.items("layers", 1, 3);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string path = str("layers.", i);
    add(path, "TransformerBlock", layers[i].in("unit")).may_recompute = true;
    add(path + ".attention", "Attention", layers[i].in("attention"));
    add(path + ".feed_forward", "FeedForward", layers[i].in("feed forward")).may_recompute = true;
    add(path + ".ffn_norm", "LayerNorm", layers[i].in("norm"));
    model.blocks.push_back(path);
  }
  add("norm", "LayerNorm", choose.in("norm"));
  add("pos_embeddings", "Embedding", choose.in("positions"));
  add("tok_embeddings", "Embedding", choose.in("tokens")).may_be_group = !tied;
  add("output", "Linear", choose.in("output")).may_be_group = !tied;
  model.build =
      str("Transformer(n_layers=", layers.size(), ", vocab_size=5, max_seq_len=6, dim=", dim, ", n_heads=", heads,
          ", dropout_p=", drops ? "0.1" : "0", ", weight_tying=", tied ? "true" : "false", ")");
  model.input = "randint(0, 5, [rows, 6])";
  return derived;
}

}  // namespace

DerivedModel derive_model(Chooser choose, bool tensor_parallel, int axis_size) {
  if (!tensor_parallel && choose.chance("transformer", 12)) return transformer(choose);
  Blocks blocks(tensor_parallel, axis_size);
  const int width = widths[static_cast<std::size_t>(choose.number("width", 0, widths.size() - 1))];
  blocks.start_with(width);
  const bool has_images = !tensor_parallel && choose.chance("images", 10);
  if (has_images) blocks.add_image(choose.in("image"));
  for (Chooser& block : choose.items("blocks", 1, 5)) blocks.add(block);
  if (!blocks.has_parameters()) {
    blocks.add_only_linear(choose.in("only block"));
  }
  if (has_images) return blocks.finish("2, 3, 3");
  // Dim 1 of the input of a BatchNorm is its channels.
  const bool has_sequences = !blocks.has_buffers() && choose.chance("sequences", 15);
  return blocks.finish(str(has_sequences ? "3, " : "", width));
}

}  // namespace lockstep::fuzz
