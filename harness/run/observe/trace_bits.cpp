#include "harness/run/observe/trace_bits.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include <xxhash.h>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/checkpoint.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/json_text.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/launch_read.hpp"

namespace lockstep::run {

namespace {

// Hashes the elements in row-major order, for any strides. `at` is the element at index 0 in every dim.
std::uint64_t hash_of(const std::byte* at, std::size_t element, const Dims& sizes, const Dims& strides) {
  const std::size_t count = static_cast<std::size_t>(num_elements(sizes));
  if (count == 0 || is_contiguous(sizes, strides)) return XXH3_64bits(at, bounded_product(count, element));
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::array<std::int64_t, max_dims> index{};
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    for (int dim = 0; dim < sizes.size(); ++dim)
      offset += element_offset(index[static_cast<std::size_t>(dim)], strides[dim]);
    XXH3_64bits_update(state.get(), at + element_offset(offset, static_cast<std::int64_t>(element)), element);
    for (int dim = sizes.size() - 1; dim >= 0; --dim) {
      if (++index[static_cast<std::size_t>(dim)] < sizes[dim]) break;
      index[static_cast<std::size_t>(dim)] = 0;
    }
  }
  return XXH3_64bits_digest(state.get());
}

struct Record {
  const char* what;  // forward, recompute, backward, gradient
  std::string path;
  int output_index;  // "part" in the file
  int iteration;
  int line;
  DType dtype;
  Dims sizes;
  std::atomic<std::uint64_t> hash{0};
  std::atomic<bool> done{false};  // stays false if the launch failed

  Record(const char* what_hashed, std::string module_path, int index, const Tensor& tensor)
      : what(what_hashed),
        path(std::move(module_path)),
        output_index(index),
        dtype(tensor.dtype()),
        sizes(tensor.sizes()) {
    const RankContext& context = RankContext::current();
    iteration = context.iteration;
    line = context.scenario_line;
  }
};

bool is_among(const std::vector<nn::NamedModule>& modules, const nn::ModulePtr& module) {
  return std::any_of(modules.begin(), modules.end(),
                     [&](const nn::NamedModule& entry) { return entry.module == module; });
}

}  // namespace

struct TraceBits::Records {
  std::deque<Record> list;  // a deque: launches keep the addresses of records

  static void add(const std::shared_ptr<Records>& records, const char* what, const std::string& path, int index,
                  const Tensor& tensor) {
    if (!tensor.defined() || tensor.is_meta() || !tensor.storage()->has_memory()) return;
    Record& record = records->list.emplace_back(what, path, index, tensor);
    device::launch_read(device::current_stream(tensor.device()), "trace_bits", read(tensor),
                        [records, &record, strides = tensor.strides()](const std::byte* bytes) {
                          record.hash = hash_of(bytes, size_of(record.dtype), record.sizes, strides);
                          record.done = true;
                        });
  }
};

TraceBits::TraceBits() : records_(std::make_shared<Records>()) {}
TraceBits::~TraceBits() = default;

void TraceBits::after_step(scenario::Verb verb, const std::string& name, const Value& result) {
  if (const nn::ModulePtr* model = bound_model(verb, result)) add_hooks(name, *model);
  if (verb == scenario::Verb::backward) hash_gradients();
}

void TraceBits::add_hooks(const std::string& name, const nn::ModulePtr& root) {
  std::erase_if(roots_, [](const Root& entry) { return entry.module.expired(); });
  const auto reached = std::make_shared<std::uint64_t>(0);
  roots_.push_back({name, root, reached});
  for (const nn::NamedModule& entry : nn::named_modules(root)) {
    const std::string path = full_path(name, entry.path);
    entry.module->add_post_forward(
        [records = records_, path, reached](nn::Module&, const nn::Inputs&, nn::Structure& outputs) {
          const bool is_recomputation = recomputing();
          int index = 0;
          for (const Tensor& output : nn::tensors_of(outputs)) {
            Records::add(records, is_recomputation ? "recompute" : "forward", path, index, output);
            // A leaf was not computed by this module; the gradients of parameters are hashed after backward.
            if (grad_enabled() && requires_grad(output) && !is_leaf(output))
              add_hook(output, [records, path, index, reached](const Tensor& gradient) {
                if (!backward_runs(*reached)) *reached = backward_id();
                Records::add(records, "backward", path, index, gradient);
                return Tensor();
              });
            ++index;
          }
        },
        nn::Module::Place::user);
  }
}

void TraceBits::note_last_backward(const nn::ModulePtr& module, bool is_last) {
  const std::vector<nn::NamedModule> below = nn::named_modules(module);
  std::erase_if(not_last_, [&](const std::weak_ptr<nn::Module>& weak) {
    const nn::ModulePtr known = weak.lock();
    return !known || (is_last && is_among(below, known));
  });
  if (!is_last) not_last_.push_back(module);
}

bool TraceBits::is_last(const nn::ModulePtr& root) const {
  const std::vector<nn::NamedModule> modules = nn::named_modules(root);
  return std::none_of(not_last_.begin(), not_last_.end(),
                      [&](const std::weak_ptr<nn::Module>& known) { return is_among(modules, known.lock()); });
}

void TraceBits::hash_gradients() {
  for (Root& entry : roots_) {
    const nn::ModulePtr root = entry.module.lock();
    if (!root) continue;
    if (in_backward() && (*entry.reached == 0 || backward_runs(*entry.reached))) continue;
    if (std::exchange(*entry.reached, 0) != 0) entry.waits = !is_last(root);
    if (entry.waits) continue;
    for (const nn::NamedParameter& parameter : nn::named_parameters(root))
      Records::add(records_, "gradient", full_path(entry.name, parameter.path), 0, grad(parameter.trained()));
  }
}

void TraceBits::write(const std::string& path, const RecordingHeader& header) const {
  std::string text = str("{", header_members("trace", header), "}\n");
  for (const Record& record : records_->list) {
    std::string sizes;
    for (const std::int64_t size : record.sizes) sizes += str(sizes.empty() ? "" : ",", size);
    char hash[17] = "";
    if (record.done) std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(record.hash));
    text += str("{\"what\":\"", record.what, "\",\"path\":", json_text(record.path), ",\"part\":", record.output_index,
                ",\"iteration\":", record.iteration, ",\"line\":", record.line, ",\"type\":\"", name_of(record.dtype),
                "\",\"sizes\":[", sizes, "],\"hash\":\"", hash, "\"}\n");
  }
  text += str("{\"kind\":\"end\",\"records\":", records_->list.size(), "}\n");
  write_recording(path, text, "the trace", "--trace-bits");
}

}  // namespace lockstep::run
