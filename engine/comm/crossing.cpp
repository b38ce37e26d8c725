#include "engine/comm/crossing.hpp"

#include <algorithm>

#include "engine/comm/reduce.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// Smaller pieces travel in the message itself.
constexpr std::size_t inline_bytes = 4096;
constexpr int max_sums_in_memory = 4;
constexpr std::size_t max_partials_in_memory = 8;

std::vector<int> hosts_of(WorldControl& world, const GroupControl& group) {
  std::vector<int> hosts;
  hosts.reserve(static_cast<std::size_t>(group.size));
  for (int member = 0; member < group.size; ++member)
    hosts.push_back(world.hosts_control()->host_of()[group.members()[member]]);
  return hosts;
}

}  // namespace

std::vector<std::byte> LandingPool::take(std::size_t bytes) {
  std::vector<std::byte> memory;
  if (!free_.empty()) {
    memory = std::move(free_.back());
    free_.pop_back();
  }
  if (memory.size() < bytes) memory.resize(bytes);
  return memory;
}

void LandingPool::give(std::vector<std::byte> memory) {
  if (!memory.empty() && free_.size() < 64) free_.push_back(std::move(memory));
}

CollectiveCrossing::CollectiveCrossing(WorldControl& world, GroupControl& group, std::uint64_t sequence,
                                       FerryPost& post, LandingPool& landing)
    : group_(group),
      slot_(group.slot(sequence)),
      sequence_(sequence),
      post_(post),
      landing_(landing),
      entries_(slot_.entries()),
      shape_(entries_[0].fingerprint, hosts_of(world, group)),
      host_(world.hosts_control()->host),
      mine_(shape_.members_on(host_)),
      moved_in_(static_cast<std::size_t>(group.size)),
      moved_out_(static_cast<std::size_t>(group.size)),
      elements_left_(elements_received(shape_, host_)) {
  start();
}

void CollectiveCrossing::count(int member, std::int64_t in, std::int64_t out) {
  moved_in_[static_cast<std::size_t>(member)] += in;
  moved_out_[static_cast<std::size_t>(member)] += out;
}

void CollectiveCrossing::start() {
  const int others = shape_.num_blocks() - static_cast<int>(shape_.blocks_on(host_).size());
  for (const Piece& piece : pieces_owned(shape_, host_)) {
    Sum sum;
    sum.piece = piece;
    sum.summands.resize(static_cast<std::size_t>(shape_.num_blocks()));
    sum.missing = others;
    sums_.push_back(std::move(sum));
  }
  sums_left_ = sums_.size();
  const bool counts_inputs =
      shape_.kind != Operation::broadcast;  // whose root has no output, and counts in store_copies()
  const std::vector<Crossing> crossings = crossings_from(shape_, host_);
  if (shape_.is_sum()) {
    to_send_.assign(crossings.begin(), crossings.end());
    send_summands();
    return;
  }
  for (const Crossing& each : crossings) {
    send(each.to_host, -1, each.piece, entry(each.from).input + bytes(source_of(shape_, each.piece.begin).at));
    if (counts_inputs) count(each.from, static_cast<std::int64_t>(bytes(each.piece.n)), 0);
  }
  // Copies within this host.
  const std::int64_t num_shards = shape_.shard == 0 ? 0 : shape_.total() / shape_.shard;
  for (std::int64_t index = 0; index < num_shards; ++index) {
    const Piece piece{bounded_product(shape_.shard, index), shape_.shard};
    const Place from = source_of(shape_, piece.begin);
    if (shape_.host_of[static_cast<std::size_t>(from.member)] != host_) continue;
    store_copies(piece, entry(from.member).input + bytes(from.at), false);
    if (counts_inputs && !destinations_on(shape_, host_, piece.begin).empty())
      count(from.member, static_cast<std::int64_t>(bytes(piece.n)), 0);
  }
}

// A summand of one member goes straight from its input.
bool CollectiveCrossing::send_summands() {
  bool changed = false;
  while (!to_send_.empty() && sending_.size() < max_partials_in_memory) {
    const Crossing each = to_send_.front();
    to_send_.pop_front();
    const int end = shape_.end_of_block(each.from);
    if (end == each.from + 1) {
      send(each.to_host, each.from, each.piece, entry(each.from).input + bytes(each.piece.begin));
    } else {
      std::vector<std::byte> partial = partial_sum(each.from, each.piece);
      const std::byte* const data = partial.data();
      send(each.to_host, each.from, each.piece, data, std::move(partial));
    }
    for (int member = each.from; member < end; ++member)
      count(member, static_cast<std::int64_t>(bytes(each.piece.n)), 0);
    changed = true;
  }
  return changed;
}

// Of the members of a block of this host, undivided.
std::vector<std::byte> CollectiveCrossing::partial_sum(int block, const Piece& piece) {
  std::vector<const std::byte*> inputs;
  for (int member = block; member < shape_.end_of_block(block); ++member) inputs.push_back(entry(member).input);
  std::vector<std::byte> sum = landing_.take(bytes(piece.n));
  std::byte* const output = sum.data() - bytes(piece.begin);
  reduce({shape_.dtype, shape_.op, inputs, {&output, 1}, 1, false}, piece.begin, piece.n);
  return sum;
}

void CollectiveCrossing::send(int to_host, int summand_of, const Piece& piece, const std::byte* from,
                              std::vector<std::byte> partial) {
  DataBody body{};
  body.group = group_.id;
  body.sequence = sequence_;
  body.begin = piece.begin;
  body.n = piece.n;
  body.member = summand_of;
  const std::size_t size = bytes(piece.n);
  if (size <= inline_bytes) {
    post_.send(to_host, FerryKind::data, body, {reinterpret_cast<const char*>(from), size});
    landing_.give(std::move(partial));
  } else {
    sending_.push_back({post_.send_data(to_host, body, from, size), std::move(partial)});
  }
}

// Stores a piece in the outputs of this host's members that get it.
void CollectiveCrossing::store_copies(const Piece& piece, const std::byte* from, bool first_is_stored) {
  const std::vector<Place> places = destinations_on(shape_, host_, piece.begin);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const bool stored = first_is_stored && i == 0;
    if (entry(places[i].member).output == nullptr) {  // the root of a broadcast has only an input
      count(places[i].member, static_cast<std::int64_t>(bytes(piece.n)), 0);
      continue;
    }
    count(places[i].member, 0,
          static_cast<std::int64_t>(stored ? bytes(piece.n) : copy(output(places[i]), from, bytes(piece.n), false)));
  }
}

void CollectiveCrossing::take(FerryPost::Received& received) {
  DataBody body;
  std::string_view rest = received.body;
  const auto refuse = [&](const std::string& what) {
    throw CollectiveError(
        str("data from host ", received.from, " for ", name_of(shape_.kind), " #", sequence_, " does not fit: ", what));
  };
  if (!take_body(rest, body)) refuse("the message is too short");
  const std::size_t size = received.message.data_bytes > 0 ? received.message.data_bytes : rest.size();
  const Piece piece{body.begin, body.n};
  if (piece.begin < 0 || piece.n <= 0 || piece.begin + piece.n > shape_.total() || size != bytes(piece.n))
    refuse(str(size, " bytes for elements ", piece.begin, " to ", piece.begin + piece.n, " of ", shape_.total()));
  if (body.member >= 0) {
    const auto found = std::find_if(sums_.begin(), sums_.end(), [&](const Sum& sum) { return sum.piece == piece; });
    if (found == sums_.end() || body.member >= shape_.size || body.member % shape_.block != 0 ||
        shape_.host_of[static_cast<std::size_t>(body.member)] != received.from)
      refuse(str("this host does not sum these elements of member ", body.member));
    return take_summand(static_cast<std::size_t>(found - sums_.begin()),
                        static_cast<std::size_t>(body.member / shape_.block), received.message, rest);
  }
  const std::vector<Place> places = destinations_on(shape_, host_, piece.begin);
  if (places.empty()) refuse("no member here gets it");
  if (received.message.data_bytes == 0) {
    store_copies(piece, reinterpret_cast<const std::byte*>(rest.data()), false);
    elements_left_ -= piece.n;
    return;
  }
  arriving_.push_back({piece, post_.link().receive(received.message, output(places.front()))});
}

void CollectiveCrossing::take_summand(std::size_t sum, std::size_t block, const Message& message,
                                      std::string_view inline_data) {
  if (message.data_bytes > 0) {
    waiting_.push_back({sum, block, message});
    return;
  }
  std::vector<std::byte>& summand = sums_[sum].summands[block];
  summand = landing_.take(inline_data.size());
  std::memcpy(summand.data(), inline_data.data(), inline_data.size());
  if (--sums_[sum].missing == 0) add(sums_[sum]);
}

// Has summands received whose sum may be in memory.
bool CollectiveCrossing::begin_waiting() {
  bool changed = false;
  for (auto each = waiting_.begin(); each != waiting_.end();) {
    Sum& sum = sums_[each->sum];
    if (!sum.begun && sums_in_memory_ >= max_sums_in_memory) {
      ++each;
      continue;
    }
    if (!sum.begun) {
      sum.begun = true;
      sum.transfers.resize(sum.summands.size());
      ++sums_in_memory_;
    }
    std::vector<std::byte>& summand = sum.summands[each->block];
    summand = landing_.take(each->message.data_bytes);
    sum.transfers[each->block] = post_.link().receive(each->message, summand.data());
    each = waiting_.erase(each);
    changed = true;
  }
  return changed;
}

// All summands are here: adds them in the order of the members.
void CollectiveCrossing::add(Sum& sum) {
  std::vector<const std::byte*> inputs;
  inputs.reserve(sum.summands.size());
  const std::size_t skipped = bytes(sum.piece.begin);  // a summand begins at the piece, an input at the range
  for (int block = 0; block < shape_.size; block += shape_.block) {
    std::vector<std::byte>& summand = sum.summands[static_cast<std::size_t>(block / shape_.block)];
    const bool is_one_member = shape_.end_of_block(block) == block + 1;
    if (summand.empty() && !is_one_member) summand = partial_sum(block, sum.piece);
    inputs.push_back(summand.empty() ? entry(block).input : summand.data() - skipped);
  }
  const std::vector<Place> places = destinations_on(shape_, host_, sum.piece.begin);
  std::vector<std::byte*> outputs;
  outputs.reserve(places.size());
  for (const Place& place : places) outputs.push_back(output(place) - skipped);
  const auto stored = static_cast<std::int64_t>(
      reduce({shape_.dtype, shape_.op, inputs, outputs, shape_.op == ReduceOp::mean ? shape_.size : 1, false},
             sum.piece.begin, sum.piece.n));
  for (const Place& place : places) count(place.member, 0, stored);
  if (shape_.kind == Operation::reduce_scatter)
    for (const int member : mine_) count(member, stored, 0);
  if (shape_.kind == Operation::all_reduce)
    for (const int host : shape_.hosts)
      if (host != host_) send(host, -1, sum.piece, outputs.front() + skipped);
  for (std::vector<std::byte>& summand : sum.summands) landing_.give(std::move(summand));
  sum.summands.clear();
  sum.transfers.clear();
  if (sum.begun) --sums_in_memory_;
  --sums_left_;
}

bool CollectiveCrossing::progress() {
  if (finished_) return false;
  Link& link = post_.link();
  bool changed = begin_waiting();
  for (Sum& sum : sums_) {
    for (Transfer& transfer : sum.transfers) {
      if (transfer == 0 || !link.is_done(transfer)) continue;
      transfer = 0;
      --sum.missing;
      changed = true;
    }
    if (!sum.transfers.empty() && sum.missing == 0) add(sum);
  }
  changed |= std::erase_if(arriving_, [&](const Arriving& each) {
               if (!link.is_done(each.transfer)) return false;
               const std::vector<Place> places = destinations_on(shape_, host_, each.piece.begin);
               store_copies(each.piece, output(places.front()), true);
               elements_left_ -= each.piece.n;
               return true;
             }) > 0;
  changed |= std::erase_if(sending_, [&](Sending& each) {
               if (!link.is_done(each.transfer)) return false;
               landing_.give(std::move(each.partial));
               return true;
             }) > 0;
  changed |= send_summands();
  if (sums_left_ == 0 && elements_left_ == 0 && arriving_.empty() && sending_.empty() && to_send_.empty()) {
    finish();
    return true;
  }
  return changed;
}

bool CollectiveCrossing::abandon() {
  for (const Waiting& each : waiting_) post_.drop(each.message);
  waiting_.clear();
  to_send_.clear();
  if (finished_) return true;
  progress();
  const auto flies = [](Transfer transfer) { return transfer != 0; };
  return sending_.empty() && arriving_.empty() && std::none_of(sums_.begin(), sums_.end(), [&](const Sum& sum) {
           return std::any_of(sum.transfers.begin(), sum.transfers.end(), flies);
         });
}

void CollectiveCrossing::finish() {
  finished_ = true;
  for (const int member : mine_) {
    const auto i = static_cast<std::size_t>(member);
    entry(member).moved_bytes.fetch_add(std::max(moved_in_[i], moved_out_[i]), std::memory_order_relaxed);
  }
  slot_.stage.store(Stage::finished);
  notify(slot_.changes);
}

}  // namespace lockstep::comm
