// The prose of scenarios/REFERENCE.md between its generated tables, in the order of the page. Internal to this layer.
#pragma once

#include <string_view>

namespace lockstep::scenario::prose {

inline constexpr std::string_view opening = R"page(# Scenario reference

This page is generated from the program's vocabulary, and a test keeps it up to date. `lockstep schema` prints the same
vocabulary as a JSON Schema.

A scenario is a YAML file. It describes a training run on several ranks and the conditions that the run must meet. All
ranks run the same steps in order. A complete scenario:

```yaml
scenario: examples/one_step
summary: A replicated model holds averaged gradients, the same on every rank.
ranks: {world_size: [2, 4]}
steps:
  - seed: 0
  - model: Sequential(Linear(8, 16), ReLU(), Linear(16, 4))
    as: model
  - replicate: model
  - seed: rank + 1
  - forward: {loss: "sum(model(randn(5, 8)))"}
  - backward: loss
  - for_each: {name: p, in: parameters(model)}
    steps:
      - expect_across: {value: p.grad, same: true}
```

`lockstep run FILE` runs it once per world size. `lockstep validate FILE` checks it without running it and prints every
mistake with its line. `lockstep explain FILE` describes its steps and what would make it fail.

## Keys of a file

)page";

inline constexpr std::string_view values_section = R"page(
Values under `parameters` and `matrix` are literal: integers, numbers, `true`, `false`, `none`, `inf`, texts, lists and
maps.

## Literal texts and expressions

The type of an argument decides whether it is an expression; quotes do not matter:

- `path`, `paths`, `word`, `words`, `text` and words to choose from (`a|b`) are literal. `${...}` inserts the value of an
  expression, as in `test.layers.${i}`. A text that consists of one `${...}` only may also give a list. In these
  arguments `none` is an ordinary word.
- `name` and `names` are literal and accept no `${...}`.
- All other types are expressions: `lr: 1e-2`, `times: n + 1`, `when: rank == 0`. A YAML list or map in place of an
  expression is a list or map of expressions; the keys of the map are texts.

A text within an expression has single quotes: `form == 'wrapper'`.

### Expressions

From the strongest binding to the weakest:

| form | meaning |
|---|---|
| `x.name` `x[i]` `x[a:b]` `f(x, key=y)` | attribute or entry, item, slice, call |
| `a ** b` | power, groups to the right |
| `-x` | negation |
| `a * b` `a / b` `a // b` `a % b` `a @ b` | `/` always gives a number; `//` and `%` round down; `@` multiplies matrices |
| `a + b` `a - b` | `+` also joins texts and lists; `list * n` repeats a list |
| `==` `!=` `<` `<=` `>` `>=` `in` | comparisons; they do not chain, join several with `and` |
| `not a` | |
| `a and b` | |
| `a or b` | |
| `a if c else b` | |

In addition: `(x)`, `[x, y]`, `{'key': x}`, `[f(x) for x in xs if c]`, `{k: v for k, v in pairs}`, `'text'` (with `\'`,
`\\`, `\n`, `\t`), integers, numbers such as `0.5` and `1e-2`, `true`, `false`, `none`, `inf`.

- Only a boolean is a condition. `and`, `or` and `if` evaluate only the operands that decide the result.
- Numbers are equal when their values are equal. Values of different types are never equal, so `1 != true`.
- These comparisons take a tensor with `none` only. `expect_equal` compares the values of tensors, and `eq(x, y)`,
  `lt(x, y)` and the like give a tensor of conditions.
- Integers have 64 bits. Overflow is an error, and so is division by zero.
- `f(...)` calls the module that is bound to the name `f` if there is one, otherwise the function `f`.
- Each rank evaluates an expression when its step runs, from left to right. Random functions draw from that rank's
  generator.
- `skip`, `expect_failure`, `evidence` and the `world_size` of a stage are evaluated before launch. They can use parameters, matrix
  names, `world_size`, `launch`, `device`, and the functions on plain values.

### Predefined names

| name | value |
|---|---|
| `rank` | the index of this rank, from 0 |
| `world_size` | the number of ranks |
| `device` | the device of the case: `'cpu'`, `'sim'` or `'cuda'` |
| `device_index` | the index of this rank's device |
| `launch` | `'process'` or `'thread'` |
| `all_ranks` | the mesh of all ranks |
)page";

inline constexpr std::string_view names_section = R"page(
## Names and paths

`as`, `let`, `forward`, `for_each` and `index` bind names: lower-case letters, digits and `_`, a letter first. A file is
one scope, so a name that is bound in a loop stays bound after it. Each use of a routine has a scope of its own. Binding
a name again releases its old value. Parameters, matrix names and the predefined names cannot be bound. Using a name that
no earlier step binds is an error in the file. Using a name whose step did not run makes the case INVALID.

A path is a bound name, followed by components separated by dots: `model.layers.0.attention`. Within a component, `*`
matches any characters, `?` one character and `[abc]` one of these characters. A component `**` matches any number of
components. `model.*` matches the children of the model, but not the model itself. Matches are returned in registration
order, each object once. A path that matches nothing is an error. Paths and names never contain wrappers.

Files and folders are read from and written to the case's own folder. A name with a leading `/` can only be read: it is
looked up beside a scenario of your own, then in the folder of scenarios.

## Models

`model: Sequential(Linear(16, 15), ReLU(), Linear(15, 8))` builds a tree of modules. It can use the models that the file
defines itself and these:

)page";

inline constexpr std::string_view model_keys_section = R"page(
A file defines its own models under `models`. The name of a model starts with an upper-case letter. A model has these
keys:

)page";

inline constexpr std::string_view model_example = R"page(
In the model's expressions, its own names hide other names. Calling a child runs the hooks on it.

```yaml
models:
  Gated:
    arguments: {dim: required, scale: 1.0}
    children: {inner: "Linear(dim, dim)", gate: "Linear(dim, dim)"}
    parameters: {offset: "zeros(dim)"}
    methods:
      gated(x, factor=1): inner(x) * gate(x) * factor + offset
      forward(x):
        hidden: gated(x, factor=2)
        return: relu(hidden)
```

## Steps

A step is a map with one verb. It may have these keys beside the verb:

)page";

inline constexpr std::string_view verbs_section = R"page(
## Verbs

In the tables, `*` marks the argument that may be given alone (`seed: 42` is `seed: {value: 42}`), `?` marks an optional
argument, `= x` is the default, `a|b` lists the words to choose from, and the arrow shows the result that `as` names. A
verb that is given no arguments is written `barrier: {}`.
)page";

inline constexpr std::string_view collectives_note = R"page(
A collective runs in the process group of `mesh`, and ranks are counted within it. With `async: true` a collective
returns at once, and its result is a handle for `wait`.
)page";

inline constexpr std::string_view hooks_section = R"page(
`at` decides whether a hook takes `modules`, `parameters` or `optimizer`:

| at | argument | runs |
|---|---|---|
)page";

inline constexpr std::string_view hooks_end = R"page(
The steps of a hook may use `module`, `parameter`, `inputs`, `named_inputs`, `outputs` and `recomputing`. Names are
looked up when the hook runs, so a hook that is registered in a loop must not use the names of the loop. A hook runs
innermost: after the APIs' own hooks before a forward, and before them after a forward. It runs again when the forward is
recomputed.
)page";

inline constexpr std::string_view control_note = R"page(
`for_each` with several names unpacks each item: `for_each: {name: [key, value], in: "zip(ks, vs)"}`. `choose` is written
with its branches:

```yaml
- choose: mode
  among:
    all:
      - replicate: model
    parts:
      - replicate: [model.0, model.1]
```
)page";

inline constexpr std::string_view checks_section = R"page(
Rules for checks:

- A check takes a snapshot of its operands and is judged at the end of the case. A check therefore orders nothing and
  hides no race. Reading a value into plain arithmetic (`item`, a condition on a tensor's value, `record`) does wait for
  the value.
- A case passes when all of its checks hold and at least one of them gathered evidence. A comparison of zeros with zeros,
  of a storage with itself, or of no elements is trivial: it is counted separately and is no evidence. Not-a-number
  equals nothing.
- A check that something is absent or bounded is trivial where nothing happened: `peak_bytes` of a window that allocated
  nothing of its purposes; `seconds`, `counts()` or the absence of collectives in a window in which no step worked;
  events in a window in which the model had none. A step works unless it observes, checks or controls. A `let` works when
  it calls a module or computes with tensors.
- A condition of `expect` counts under `conditions`, not as a comparison.
- `expect_equal` of floating-point values holds when |a - b| <= atol + rtol * |b| + of_largest * max|b|. Tolerances that
  are not given follow from the dtype:

  | dtype | rtol | atol |
  |---|---|---|
  | float32 | 1.3e-6 | 1e-5 |
  | float64, and numbers | 1e-7 | 1e-7 |
  | float16 | 1e-3 | 1e-5 |
  | bfloat16 | 1.6e-2 | 1e-5 |
  | all others | equal | equal |

  Dtypes and shapes must agree, for `expect_different` too. A number is compared as a tensor filled with it. One that
  the type of the tensor cannot hold is an error. Lists and maps are compared item by item (with keys in the same
  order), and max|b| is the maximum over all items. Models agree when the names of their parameters in order, their
  values, their buffers and, unless `gradients: false` is given, their gradients agree. `bits: true` requires the same
  bits.
- `expect_equal` and `expect_different` also accept a list: `expect_equal: [actual, expected]`.
- `expect` takes one condition or a list of conditions. A condition made of constants only is refused, because it says
  nothing about the run. So is a comparison of constants with constants, or of a constant across ranks. `rank` and names
  that steps bind count as values of the run. A name is a constant, however, if a `let` or `forward` of constants binds
  it, outside of blocks and without `when` and `raises`, and no other step of the file does.
- `expect_collectives` checks the collectives of a window (`observe`) that match `phase`, `mesh` and `dtype`.
  `exactly: {data_parallel: {all_reduce: 2}}` lists all of them, `total` is their number, and `bytes` lists their bytes
  in the form of `exactly`. The families `start_up` and `checkpoint` count only where they are named.
- Ranks must issue a collective of the families `user`, `tensor_parallel` and `checkpoint` on the same line of the same
  file (in a routine: the routine's line), with the same shape, `dim`, device and mesh axis. Where ranks take different
  branches on purpose, give the steps of each branch the same `place: name`. `send` and `receive` need no common line.
- `raises` expects an error. A step that should fail and does not fail makes the case fail. A message that matches every
  error is refused.

## Functions
)page";

inline constexpr std::string_view types_note = R"page(
The type of `a + b`, `a - b`, `a * b`, `a / b` and `where` is that of PyTorch. Comparisons compare in this type.

- Two tensors give the higher of the kinds floating-point, integer and bool, and within a kind the wider type. float16
  with bfloat16 gives float32.
- Beside a tensor with dims, a tensor without dims counts only if its kind is higher: float16 values times a float32
  scalar are float16.
- Beside a number a tensor keeps its type, except that a number with a point makes float32 of integers and bool, also
  if it is whole: `n * 2` is int64, `n * 2.0` is float32. An integer makes int64 of bool. An integer that does not fit
  is an error beside an int32 tensor.
- `/` makes float32 of integers and bool. `**` keeps integers for an integer exponent that is not negative, and makes
  float32 of them for any other.
- float16 and bfloat16 are computed in float32 and rounded once. A number is rounded to the type of the tensor first,
  except in `x * number` and `x / number`. So is a tensor with one element and another type, except in `x * scalar` and
  `x / scalar`.
- `number / x` is 1 / x, rounded, times the number. `x ** -2` is 1 / (x * x), and bfloat16 rounds x * x in it and in
  `x ** 3`.
)page";

inline constexpr std::string_view routines_section = R"page(
## Attributes

)page";

inline constexpr std::string_view in_place_note = R"page(
These change their first argument and return it, as PyTorch's functions of these names do. They are allowed in `let`, in
`forward` and in models only.

- `let` records nothing. There they may change parameters and gradients.
- In `forward`, the result gets the history of the change. So do the views of x, and the tensor of which x is a view.
  The gradient of values that `zero_`, `fill_` and `copy_` replace is zero, not none.
- `forward` refuses a leaf that requires a gradient and a view of one, a view that was made in `let` or by `split` or
  `chunk`, an input of a module whose backward hooks watch it, and a view of a sharded tensor.
- `backward` fails if it needs a tensor that was changed. The error names the lines of both steps.
- x keeps its type. An integer or bool x takes no floating value, a bool x no integer; `fill_` and `copy_` convert the
  value. An expanded x takes `fill_` and `zero_` only.
- A value that shares some elements with x, but is not x itself, is refused if both fill their memory without gaps, as in
  PyTorch. Otherwise, and always where x is sharded, the value is that from before the operation.
- A sharded x keeps its layout. A sharded value has the same one, or broadcasts to it without communication.
)page";

inline constexpr std::string_view attributes_end = R"page(
An attribute of a module is a child, a parameter, a buffer or a method; numbered children are written `m.0` or `m[i]`. An
attribute of a mesh with named axes is this rank's slice along the axis of that name: `world.dp`, `world.dp.rank`,
`world.dp.size`. `world[['replicate', 'shard']]` is its slice along several axes. An attribute of a map is an entry.

## Routines

Steps that several scenarios share are written as a routine in `scenarios/lib/NAME.yaml`:

)page";

inline constexpr std::string_view routines_end = R"page(
```yaml
routine: average_gradients
summary: Average every gradient over the ranks of a mesh with an all-reduce per parameter.
parameters:
  model: model
  mesh: {type: mesh, default: all_ranks}
steps:
  - for_each: {name: p, in: parameters(model)}
    steps:
      - all_reduce: {tensor: p.grad, op: mean, mesh: mesh}
        when: p.grad != none
```

`use: average_gradients` runs it. `with` gives its arguments, and `as: {its_name: my_name}` binds the values that the
routine lists under `gives`. A routine sees its parameters and the predefined names, but no other name of its caller.
Arguments are values, so inputs that change per iteration are passed as a list. One of type `modules` is written as
paths. Defaults are literal, or `all_ranks`. The default `none` fits every type but `text`, and a caller may then give
`none`, too.
Routines may use other routines, up to 8 levels deep, but never themselves.

)page";

inline constexpr std::string_view yaml_section = R"page(
## YAML

The program refuses some forms of YAML, because readers easily mistake them: the plain words `yes`, `no`, `on`, `off`,
`null` and `~` in any casing, `True`, `FALSE` and similar spellings, integers with leading zeros, merge keys (`<<`),
tags, duplicate keys, aliases within the node that they name, and a second document in a file. In quotes, each of these
words is a text.

Within `{}` and `[]`, YAML ends a plain value at a comma, bracket or brace. An expression that contains one of these must
be quoted there: `forward: {loss: "sum(model(x, y))"}`. On a line of its own it needs no quotes.

## Limits

)page";

}  // namespace lockstep::scenario::prose
