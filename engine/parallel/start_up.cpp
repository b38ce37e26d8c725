#include "engine/parallel/start_up.hpp"

#include <algorithm>
#include <cstdint>

#include "engine/autograd/autograd.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/parallel/contract.hpp"
#include "engine/parallel/host_tensors.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel {

namespace {

constexpr std::size_t row_size = 3 + max_dims;  // type, requires_grad, number of dims, sizes

std::vector<std::int64_t> row_of(const Tensor& tensor) {
  std::vector<std::int64_t> row(row_size, 0);
  row[0] = static_cast<std::int64_t>(tensor.dtype());
  row[1] = requires_grad(tensor);
  row[2] = tensor.num_dims();
  for (int dim = 0; dim < tensor.num_dims(); ++dim) row[3 + static_cast<std::size_t>(dim)] = tensor.sizes()[dim];
  return row;
}

std::string text_of(const std::int64_t* row) {
  Dims sizes;
  for (std::int64_t dim = 0; dim < row[2]; ++dim) sizes.push_back(row[3 + dim]);
  return str(name_of(static_cast<DType>(row[0])), " ", to_text(sizes), row[1] ? "" : " frozen");
}

std::string joined_names(const std::vector<nn::NamedParameter>& parameters) {
  std::string text;
  for (const nn::NamedParameter& parameter : parameters) text += parameter.path + "\n";
  return text;
}

// The lines of `text` that are not in `other`, separated by commas.
std::string missing_lines(const std::string& text, const std::string& other) {
  std::string found;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    if (("\n" + other).find("\n" + line + "\n") == std::string::npos) found += str(found.empty() ? "" : ", ", line);
    begin = end + 1;
  }
  return found;
}

// Whose parameters are compared, for messages.
struct Owner {
  const std::string& name;
  std::string_view api;
};

[[noreturn]] void fail(const Owner& owner, const std::string& what) {
  throw Error(str(owner.api, ": the ranks have different parameters in ", owner.name, ": ", what),
              "build the same module on every rank");
}

void check_counts(comm::ProcessGroup& group, const std::vector<nn::NamedParameter>& parameters, const Owner& owner,
                  const comm::Call& call) {
  const auto counts = gather_numbers(group, static_cast<std::int64_t>(parameters.size()), call);
  const auto odd = std::find_if(counts.begin(), counts.end(), [&](std::int64_t count) { return count != counts[0]; });
  if (odd == counts.end()) return;
  const auto names = comm::exchange(group, joined_names(parameters), "names of parameters");  // all ranks get here
  const auto rank = static_cast<std::size_t>(odd - counts.begin());
  const std::string only_first = missing_lines(names[0], names[rank]);
  const std::string only_other = missing_lines(names[rank], names[0]);
  fail(owner, str(owner.api == replicate_name ? "DDP expects same model across all ranks, but " : "", "rank ",
                  group.members()[0], " has ", counts[0], " and rank ", group.members()[rank], " has ", counts[rank],
                  only_first.empty() ? std::string() : str("; only the first has ", only_first),
                  only_other.empty() ? std::string() : str("; only the second has ", only_other)));
}

void check_shapes(comm::ProcessGroup& group, const std::vector<nn::NamedParameter>& parameters, const Owner& owner,
                  const comm::Call& call) {
  std::vector<std::int64_t> mine;
  for (const nn::NamedParameter& parameter : parameters) {
    const auto row = row_of(parameter.tensor());
    mine.insert(mine.end(), row.begin(), row.end());
  }
  const auto first = broadcast_numbers(group, mine, call);
  std::string difference;
  for (std::size_t i = 0; i < parameters.size() && difference.empty(); ++i) {
    const std::int64_t* own = mine.data() + i * row_size;
    const std::int64_t* theirs = first.data() + i * row_size;
    if (!std::equal(own, own + row_size, theirs))
      difference = str("params[", i, "] in this process appears not to match that of process 0: `", parameters[i].path,
                       "` is ", text_of(theirs), " on rank ", group.members()[0], " and ", text_of(own), " on rank ",
                       group.members()[static_cast<std::size_t>(group.rank())]);
  }
  // Ranks exchange names and differences, so that a rank without a difference fails, too.
  const auto reports = comm::exchange(group, difference + "\n" + joined_names(parameters), "differences of parameters");
  for (const std::string& report : reports)
    if (report[0] != '\n') fail(owner, report.substr(0, report.find('\n')));
  for (std::size_t rank = 1; rank < reports.size(); ++rank) {
    if (reports[rank] == reports[0]) continue;
    const auto difference_at = std::mismatch(reports[0].begin(), reports[0].end(), reports[rank].begin()).first;
    const auto line = static_cast<std::size_t>(std::count(reports[0].begin() + 1, difference_at, '\n'));
    const auto name_at = [line](const std::string& report) {
      std::size_t begin = 1;
      for (std::size_t i = 0; i < line; ++i) begin = report.find('\n', begin) + 1;
      return report.substr(begin, report.find('\n', begin) - begin);
    };
    fail(owner, str("number ", line, " is `", name_at(reports[0]), "` on rank ", group.members()[0], " and `",
                    name_at(reports[rank]), "` on rank ", group.members()[rank]));
  }
}

}  // namespace

void start_up(comm::ProcessGroup& group, const std::vector<nn::NamedParameter>& parameters, const std::string& name,
              std::string_view api) {
  const Owner owner{name, api};
  comm::Call call;
  call.family = comm::Family::start_up;
  call.owner = name;
  check_counts(group, parameters, owner, call);
  if (parameters.empty()) return;
  check_shapes(group, parameters, owner, call);
  std::vector<Tensor> tensors;
  for (const nn::NamedParameter& parameter : parameters)
    if (!parameter.tensor().is_meta()) tensors.push_back(parameter.tensor());
  const std::vector<Tensor> values = broadcast_together(group, tensors, call);
  const NoGrad no_grad;
  if (api != replicate_name && defect_armed(Defect::tensor_ranks_keep_values)) [[unlikely]]
    return;
  if (group.rank() != 0)
    for (std::size_t i = 0; i < tensors.size(); ++i) raw::copy_(tensors[i], values[i]);
}

}  // namespace lockstep::parallel
