#include "harness/run/values/json_values.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

namespace {

using Json = nlohmann::json;

// The handler of parser events. The library prescribes the names.
class Builder {
 public:
  using binary_t = Json::binary_t;

  Value take() { return std::move(root_); }

  bool null() { return add(Value()); }
  bool boolean(bool value) { return add(Value(value)); }
  bool number_integer(std::int64_t value) { return add(Value(value)); }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(INT64_MAX))
      throw Error(str("the integer ", value, " does not fit in 64 bits with a sign"));
    return add(Value(static_cast<std::int64_t>(value)));
  }
  bool number_float(double value, const std::string&) { return add(Value(value)); }
  bool string(std::string& value) { return add(Value(std::move(value))); }
  bool binary(binary_t&) { throw InternalError("JSON text holds no binary values"); }

  bool start_object(std::size_t) { return open(true); }
  bool end_object() { return close(); }
  bool key(std::string& name) {
    const Map& entries = open_.back().entries;
    if (std::any_of(entries.begin(), entries.end(), [&](const auto& entry) { return entry.first.text == name; }))
      throw Error(str("an object of the JSON has the key `", name, "` twice", place()),
                  "remove one of the two entries");
    open_.back().key = std::move(name);
    return true;
  }
  bool start_array(std::size_t) { return open(false); }
  bool end_array() { return close(); }
  template <class Failure>
  [[noreturn]] bool parse_error(std::size_t, const std::string&, const Failure& failure) {
    throw Error(str("malformed JSON: ", failure.what()));
  }

 private:
  struct Open {
    bool is_map = false;
    std::string key;
    List items;
    Map entries;
  };

  bool open(bool is_map) {
    if (open_.size() >= static_cast<std::size_t>(scenario::limits::value_depth))
      throw Error(str("the JSON nests deeper than ", scenario::limits::value_depth));
    open_.emplace_back().is_map = is_map;
    return true;
  }

  bool close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    return add(done.is_map ? Value::map(std::move(done.entries)) : Value::list(std::move(done.items)));
  }

  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Open& into = open_.back();
    if (into.items.size() + into.entries.size() >= scenario::limits::list_items)
      throw Error(str("the JSON has a list or map of more than ", scenario::limits::list_items, " items"));
    if (!into.is_map) {
      into.items.push_back(std::move(value));
      return true;
    }
    into.entries.emplace_back(std::move(into.key), std::move(value));
    return true;
  }

  // Where the innermost open value is: ", in `groups[1].options`"; empty for the outermost one.
  std::string place() const {
    std::string path;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i)
      path += open_[i].is_map ? str(path.empty() ? "" : ".", open_[i].key) : str("[", open_[i].items.size(), "]");
    return path.empty() ? path : str(", in `", path, "`");
  }

  Value root_;
  std::vector<Open> open_;
};

}  // namespace

Value parse_json(const std::string& text) {
  Builder builder;
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace lockstep::run
