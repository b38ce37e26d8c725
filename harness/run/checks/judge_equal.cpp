// The judgement of expect_equal and expect_different.
#include <algorithm>
#include <utility>

#include "harness/run/checks/checks.hpp"
#include "harness/run/checks/host_values.hpp"

namespace lockstep::run {

namespace {

// The comparison of one pair, with the options that it used.
struct PairResult {
  verdict::Comparison comparison;
  verdict::CompareOptions options;
  bool nan = false;    // on one side, where the check requires a difference
  bool apart = false;  // other sizes or types, where the check requires a difference
};

// The absolute part of the tolerance is relative to the largest element of all expected values together.
double largest_expected(const EqualCheck& check) {
  double largest = 0.0;
  if (check.options.of_largest > 0.0 || check.options.library_sums)
    for (const EqualCheck::Pair& pair : check.pairs) largest = std::max(largest, largest_magnitude(pair.expected));
  return largest;
}

PairResult compare_pair(const EqualCheck::Pair& pair, const EqualOptions& options, double largest) {
  const HostPair host = to_host(pair.actual, pair.expected);
  const DType dtype = host.expected.operand.dtype;
  PairResult result;
  const bool needs_bits =
      options.bits || (options.bits_float32 && !options.different && host.tensors && dtype == DType::float32);
  result.options.bits_relaxed = needs_bits && options.library_sums && is_floating(dtype);
  result.options.bits = needs_bits && !result.options.bits_relaxed;
  const bool states_one = options.rtol || options.atol || options.of_largest > 0.0;
  // A plain number may be an element of float32. A sum in another order may be rounded to another neighbour in a
  // coarser type, and the values that follow from it carry that difference.
  DType through = host.tensors ? dtype : DType::float32;
  if (through != DType::bfloat16) through = options.coarsest.value_or(through);
  const verdict::Tolerance usual = result.options.bits_relaxed && !states_one
                                       ? verdict::tolerance_of_another_order(through)
                                       : verdict::tolerance_of(dtype);
  result.options.tolerance = {options.rtol.value_or(usual.rtol), options.atol.value_or(usual.atol)};
  result.options.of_largest = std::max(options.of_largest, usual.of_largest);
  result.options.largest_expected = largest;
  result.comparison = verdict::compare(host.actual.operand, host.expected.operand, result.options);
  const bool alike = host.actual.operand.dtype == dtype && host.actual.operand.sizes == host.expected.operand.sizes;
  result.apart = options.different && !host.exact && !alike;
  result.nan = options.different && (has_nan(host.actual.operand) || has_nan(host.expected.operand));
  if (options.from_trivial_reading) result.comparison.trivial = true;
  if (host.exact) {
    result.comparison.equal = result.comparison.same_bits = host.agree;
    result.comparison.message = host.agree ? "" : host.message;
  }
  return result;
}

std::string labels_of(const EqualCheck::Pair& pair) { return str(pair.actual.label, " and ", pair.expected.label); }

void judge_equal(const EqualCheck& check, const std::vector<PairResult>& results, verdict::Evidence& evidence,
                 const Fail& fail) {
  std::string first;
  std::size_t num_failed = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    verdict::count(evidence, results[i].comparison, results[i].options);
    if (results[i].comparison.equal) continue;
    if (num_failed++ == 0) first = str(labels_of(check.pairs[i]), ": ", results[i].comparison.message);
  }
  if (num_failed > 1) first += str("; ", num_failed, " of ", results.size(), " values differ");
  if (num_failed > 0) fail(check.site, std::move(first));
}

// One pair that differs is enough. A not-a-number fails, and so do values of other sizes or types: they would differ
// from everything.
void judge_different(const EqualCheck& check, const std::vector<PairResult>& results, verdict::Evidence& evidence,
                     const Fail& fail) {
  const auto nan = std::find_if(results.begin(), results.end(), [](const PairResult& result) { return result.nan; });
  if (nan != results.end())
    return fail(check.site, str(labels_of(check.pairs[static_cast<std::size_t>(nan - results.begin())]),
                                " cannot be compared: there is a not-a-number among them"));
  const auto apart =
      std::find_if(results.begin(), results.end(), [](const PairResult& result) { return result.apart; });
  if (apart != results.end())
    return fail(check.site, str(labels_of(check.pairs[static_cast<std::size_t>(apart - results.begin())]),
                                " cannot be compared: ", apart->comparison.message));
  const auto differs =
      std::find_if(results.begin(), results.end(), [](const PairResult& result) { return !result.comparison.equal; });
  if (differs == results.end())
    return fail(check.site,
                str(check.pairs.empty() ? "the values" : labels_of(check.pairs[0]), " agree, though they must differ"));
  if (check.options.from_trivial_reading) {
    evidence.trivial += 1;
    return;
  }
  evidence.comparisons += 1;
  evidence.elements += differs->comparison.elements;
}

}  // namespace

void Checks::judge(verdict::Evidence& evidence, const Fail& fail) {
  for (const EqualCheck& check : equal_) {
    if (!check.mismatch.empty()) {
      fail(check.site, check.mismatch);
      continue;
    }
    const double largest = largest_expected(check);
    std::vector<PairResult> results;
    for (const EqualCheck::Pair& pair : check.pairs) results.push_back(compare_pair(pair, check.options, largest));
    (check.options.different ? judge_different : judge_equal)(check, results, evidence, fail);
  }
  equal_.clear();
}

}  // namespace lockstep::run
