// The JSON Schema of scenario and routine files, for editors. It covers keys, verbs, arguments and words. `lockstep
// validate` checks the rest: names, paths and types of expressions.
#include <cmath>

#include <nlohmann/json.hpp>

#include "engine/core/text.hpp"
#include "harness/scenario/describe.hpp"

namespace lockstep::scenario {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* name_pattern = "^[a-z][a-z0-9_]*$";
constexpr const char* model_pattern = "^[A-Z][A-Za-z0-9_]*$";
constexpr const char* template_pattern = "\\$\\{";

Json ref(std::string_view definition) { return {{"$ref", str("#/definitions/", definition)}}; }
Json described(Json schema, std::string_view doc) {
  // draft-07 ignores siblings of $ref.
  if (schema.contains("$ref")) schema = {{"allOf", Json::array({schema})}};
  schema["description"] = doc;
  return schema;
}
Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}, {"minItems", 1}}; }
Json one_or_list(const Json& item) { return {{"anyOf", Json::array({item, list_of(item)})}}; }
Json map_of(Json values, const char* pattern) {
  return {{"type", "object"}, {"additionalProperties", false}, {"patternProperties", {{pattern, std::move(values)}}}};
}

// One of the words, or a text with `${}`.
Json choice(const std::vector<std::string>& words) {
  return {{"anyOf", Json::array({Json{{"enum", words}}, Json{{"type", "string"}, {"pattern", template_pattern}}})}};
}

Json in_range(Json schema, const NumberRange& range) {
  if (std::isfinite(range.least)) schema[range.above ? "exclusiveMinimum" : "minimum"] = range.least;
  if (std::isfinite(range.most)) schema[range.below ? "exclusiveMaximum" : "maximum"] = range.most;
  return schema;
}

Json argument_schema(const ArgumentSpec& spec) {
  switch (spec.type) {
    case ArgType::boolean:
      return {{"type", Json::array({"boolean", "string"})}};
    case ArgType::integer:
      return in_range({{"type", Json::array({"integer", "string"})}}, spec.range);
    case ArgType::number:
      return in_range({{"type", Json::array({"number", "string"})}}, spec.range);
    case ArgType::list:
      return {{"type", Json::array({"array", "string"})}};
    case ArgType::map:
    case ArgType::counts:
      return {{"type", Json::array({"object", "string"})}};
    case ArgType::tensors:
      return {{"type", Json::array({"array", "string"})}};
    case ArgType::tensor:
    case ArgType::mesh:
    case ArgType::optimizer:
    case ArgType::observation:
    case ArgType::dtype:
    case ArgType::module:
      return {{"type", "string"}};
    case ArgType::any:
      return ref("expression");
    case ArgType::path:
    case ArgType::word:
    case ArgType::text:
      return ref("text");
    case ArgType::paths:
    case ArgType::words:
      return one_or_list(ref("text"));
    case ArgType::choice:
      return choice(spec.choices);
    case ArgType::name:
      return ref("name");
    case ArgType::names:
      return one_or_list(ref("name"));
  }
  return ref("expression");
}

Json verb_schema(const VerbSpec& spec) {
  if (spec.free_names) {
    Json names = map_of(ref("expression"), name_pattern);
    names["minProperties"] = 1;
    return described(std::move(names), spec.doc);
  }
  Json arguments = {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
  Json required = Json::array();
  for (const ArgumentSpec& argument : spec.arguments) {
    Json schema = argument_schema(argument);
    if (argument.has_default()) schema = described(std::move(schema), str("default: ", argument.default_text));
    arguments["properties"][argument.name] = std::move(schema);
    if (!argument.optional && !argument.has_default()) required.push_back(argument.name);
  }
  if (!required.empty()) arguments["required"] = std::move(required);
  Json forms = Json::array({std::move(arguments)});
  if (const ArgumentSpec* alone = spec.alone()) {
    Json schema = argument_schema(*alone);
    // A map always gives the arguments by name.
    if (schema == ref("expression")) schema = {{"not", {{"type", "object"}}}};
    forms.push_back(std::move(schema));
  }
  if (spec.num_in_order > 0) {
    forms.push_back({{"type", "array"}, {"minItems", spec.num_in_order}, {"maxItems", spec.num_in_order}});
  }
  return described(forms.size() == 1 ? forms[0] : Json{{"anyOf", std::move(forms)}}, spec.doc);
}

std::string_view doc_of(const std::vector<KeySpec>& keys, std::string_view name) {
  for (const KeySpec& key : keys) {
    if (key.name == name) return key.doc;
  }
  return {};
}

Json step_schema() {
  Json properties = Json::object();
  Json one_verb = Json::array();
  Json dependencies = {{"else", {"if"}}, {"among", {"choose"}}, {"with", {"use"}}};
  for (const VerbSpec& spec : verbs()) {
    properties[std::string(spec.name)] = verb_schema(spec);
    one_verb.push_back({{"required", Json::array({spec.name})}});
    if (spec.block == Block::required || spec.block == Block::with_else)
      dependencies[std::string(spec.name)] = {"steps"};
    if (spec.block == Block::among) dependencies[std::string(spec.name)] = {"among"};
  }
  const Json raises = {{"type", "object"},
                       {"additionalProperties", false},
                       {"required", {"message"}},
                       {"properties",
                        {{"message", {{"type", "string"}, {"pattern", "[^*]"}}},
                         {"when", ref("condition")},
                         {"within_ms", {{"type", Json::array({"number", "string"})}}}}}};
  const Json as_map = map_of(ref("name"), name_pattern);
  const auto add = [&](const char* name, Json schema) {
    properties[name] = described(std::move(schema), doc_of(modifier_keys(), name));
  };
  add("as", {{"anyOf", Json::array({ref("name"), as_map})}});
  add("when", ref("condition"));
  add("raises", {{"anyOf", Json::array({Json{{"type", "string"}, {"pattern", "[^*]"}}, raises})}});
  add("steps", ref("steps"));
  add("else", ref("steps"));
  add("among", {{"type", "object"}, {"minProperties", 1}, {"additionalProperties", ref("steps")}});
  add("with", map_of(ref("expression"), name_pattern));
  add("place", ref("name"));
  add("note", {{"type", "string"}});
  return {{"type", "object"},
          {"additionalProperties", false},
          {"properties", std::move(properties)},
          {"oneOf", std::move(one_verb)},
          {"dependencies", std::move(dependencies)}};
}

Json model_schema() {
  const Json expressions = map_of(ref("expression"), name_pattern);
  Json properties = Json::object();
  properties["arguments"] = map_of(ref("expression"), name_pattern);
  properties["children"] = map_of({{"type", "string"}}, "^([a-z][a-z0-9_]*|[0-9]+)$");
  properties["parameters"] = map_of({{"type", "string"}}, name_pattern);
  properties["buffers"] = map_of({{"type", "string"}}, name_pattern);
  properties["non_persistent_buffers"] = map_of({{"type", "string"}}, name_pattern);
  const Json body = {{"anyOf", Json::array({Json{{"type", Json::array({"string", "number"})}},
                                            Json{{"type", "object"}, {"required", {"return"}}}})}};
  properties["forward"] = body;
  properties["methods"] = {{"type", "object"}, {"additionalProperties", body}};
  for (auto& [name, schema] : properties.items()) schema = described(schema, doc_of(model_keys(), name));
  return {{"type", "object"},
          {"additionalProperties", false},
          {"properties", std::move(properties)},
          {"anyOf", Json::array({Json{{"required", {"forward"}}}, Json{{"required", {"methods"}}}})}};
}

Json rules_schema(bool failure) {
  Json properties = {{"when", ref("condition")}, {"reason", {{"type", "string"}}}};
  if (failure) {
    properties["line"] = {{"type", "integer"}};
    for (const char* key : {"message", "flight_recorder"}) properties[key] = {{"type", "string"}, {"pattern", "[^*]"}};
    properties["verdict"] = {{"enum", failing_verdicts()}};
    properties["rank"] = {{"type", "integer"}};
    properties["also"] = {{"type", "array"}, {"items", {{"type", "string"}, {"pattern", "[^*]"}}}};
  }
  return list_of({{"type", "object"},
                  {"additionalProperties", false},
                  {"required", {"when", "reason"}},
                  {"properties", std::move(properties)}});
}

Json reason_under(const char* key) {
  return {{"type", "object"},
          {"additionalProperties", false},
          {"required", Json::array({key})},
          {"properties", {{key, {{"type", "string"}}}}}};
}

Json routine_schema() {
  const Json type = {{"enum", routine_types()}};
  const Json parameter = {
      {"anyOf", Json::array({type, Json{{"type", "object"},
                                        {"additionalProperties", false},
                                        {"required", {"type"}},
                                        {"properties", {{"type", type}, {"default", ref("literal")}}}}})}};
  Json properties = Json::object();
  properties["routine"] = ref("name");
  properties["summary"] = {{"type", "string"}, {"minLength", 1}};
  properties["parameters"] = map_of(parameter, name_pattern);
  properties["gives"] = list_of(ref("name"));
  properties["models"] = map_of(ref("model"), model_pattern);
  properties["steps"] = ref("steps");
  Json required = Json::array();
  for (const KeySpec& key : routine_keys()) {
    properties[std::string(key.name)] = described(properties.at(std::string(key.name)), key.doc);
    if (key.required) required.push_back(key.name);
  }
  return {{"title", "Lockstep routine"},
          {"type", "object"},
          {"additionalProperties", false},
          {"required", std::move(required)},
          {"properties", std::move(properties)}};
}

Json mirrors_schema() {
  return {{"type", "object"},
          {"additionalProperties", false},
          {"required", {"document", "test"}},
          {"properties",
           {{"document", {{"type", "string"}}},
            {"test", {{"type", "string"}}},
            {"number", {{"type", "integer"}, {"minimum", 1}}}}}};
}

Json stage_schema() {
  return {{"type", "object"},
          {"additionalProperties", false},
          {"required", {"name", "steps"}},
          {"properties",
           {{"name", ref("name")},
            {"world_size", {{"type", Json::array({"integer", "string"})}}},
            {"steps", ref("steps")}}}};
}

Json scenario_properties() {
  const Json size = {{"type", "integer"}, {"minimum", 1}, {"maximum", 65536}};
  const Json launch = {{"enum", {"process", "thread"}}};
  Json properties = Json::object();
  properties["scenario"] = {{"type", "string"}, {"minLength", 1}};
  properties["summary"] = {{"type", "string"}, {"minLength", 1}};
  properties["mirrors"] = mirrors_schema();
  properties["see"] = one_or_list({{"type", "string"}});
  properties["ranks"] = {{"type", "object"},
                         {"additionalProperties", false},
                         {"required", {"world_size"}},
                         {"properties", {{"world_size", one_or_list(size)}, {"launch", one_or_list(launch)}}}};
  properties["device"] = one_or_list({{"enum", devices()}});
  properties["parameters"] = map_of(ref("literal"), name_pattern);
  properties["matrix"] = map_of(
      {{"anyOf",
        Json::array({list_of(ref("literal")),
                     Json{{"type", "object"}, {"minProperties", 1}, {"additionalProperties", {{"type", "object"}}}}})}},
      name_pattern);
  properties["skip"] = rules_schema(false);
  properties["expect_failure"] = rules_schema(true);
  Json evidence = Json::object();
  for (const std::string& name : evidence_names()) evidence[name] = {{"type", Json::array({"number", "string"})}};
  properties["evidence"] = {{"type", "object"}, {"additionalProperties", false}, {"properties", std::move(evidence)}};
  const Json seconds = {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 86400}};
  properties["timeout"] = seconds;
  properties["deadline"] = seconds;
  const Json mebibytes = {{"type", "integer"}, {"minimum", 1}, {"maximum", limits::most_mb}};
  properties["limits"] = {{"type", "object"},
                          {"additionalProperties", false},
                          {"properties", {{"memory_mb", mebibytes}, {"output_mb", mebibytes}}}};
  properties["tags"] = one_or_list({{"type", "string"}});
  properties["bits"] = {{"anyOf", Json::array({Json{{"const", "required"}}, reason_under("reported")})}};
  properties["sum_order"] = {{"enum", Json::array({name_of(SumOrder::fixed), name_of(SumOrder::library)})}};
  properties["plan"] = reason_under("unplanned");
  properties["models"] = map_of(ref("model"), model_pattern);
  properties["steps"] = ref("steps");
  properties["stages"] = list_of(stage_schema());
  return properties;
}

Json scenario_schema() {
  Json properties = scenario_properties();
  Json required = Json::array();
  for (const KeySpec& key : scenario_keys()) {
    properties[std::string(key.name)] = described(properties.at(std::string(key.name)), key.doc);
    if (key.required) required.push_back(key.name);
  }
  Json scenario;
  scenario["title"] = "Lockstep scenario";
  scenario["type"] = "object";
  scenario["additionalProperties"] = false;
  scenario["required"] = std::move(required);
  scenario["oneOf"] = Json::array({Json{{"required", {"steps"}}}, Json{{"required", {"stages"}}}});
  scenario["properties"] = std::move(properties);
  return scenario;
}

}  // namespace

std::string schema() {
  Json out;
  out["$schema"] = "http://json-schema.org/draft-07/schema#";
  out["title"] = "Lockstep scenario or routine";
  // The key `routine` selects the schema, so that an editor shows the mistakes of one kind of file only.
  out["if"] = {{"required", {"routine"}}};
  out["then"] = ref("routine");
  out["else"] = ref("scenario");
  out["definitions"] = {
      {"scenario", scenario_schema()},
      {"routine", routine_schema()},
      {"name", {{"type", "string"}, {"pattern", name_pattern}}},
      {"text", {{"type", Json::array({"string", "number", "integer", "boolean"})}}},
      {"literal", {{"type", Json::array({"string", "number", "integer", "boolean", "array", "object"})}}},
      {"expression", {{"type", Json::array({"string", "number", "integer", "boolean", "array", "object"})}}},
      {"condition", {{"type", Json::array({"boolean", "string"})}}},
      {"steps", {{"type", "array"}, {"minItems", 1}, {"items", ref("step")}}},
      {"step", step_schema()},
      {"model", model_schema()}};
  return str(out.dump(1), "\n");
}

}  // namespace lockstep::scenario
