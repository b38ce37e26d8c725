// The prose of scenarios/REFERENCE.md between its generated tables, in the order of the page. Internal to this layer.
#pragma once

#include <string_view>

namespace lockstep::scenario::prose {

inline constexpr std::string_view opening = R"page(# Scenario reference

This page is generated from the vocabulary of the program (`lockstep schema` gives the same as a JSON Schema). A test
keeps it fresh.

A scenario is a YAML file that describes a training run on several ranks and what must hold of it. All ranks run the same
steps in order. Here is a whole one:

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

`lockstep run FILE` runs it, once for each world size. `lockstep validate FILE` checks it without running and shows every
mistake with its line; `lockstep explain FILE` says what it does and what would make it fail.

## Keys of a file

)page";

inline constexpr std::string_view values_section = R"page(
Values under `parameters` and `matrix` are literal: integers, numbers, `true`, `false`, `none`, `inf`, texts, lists, maps.

## Literal texts and expressions

Whether an argument is an expression depends on its type, never on quotes:

- `path`, `paths`, `word`, `words`, `text` and words to choose from (`a|b`) are literal. `${...}` puts the value of an
  expression into them, as in `test.layers.${i}`. A text that is nothing but one `${...}` may also give a list. Here
  `none` is a word like any other.
- `name` and `names` are literal too, and take no `${...}`.
- Everything else is an expression: `lr: 1e-2`, `times: n + 1`, `when: rank == 0`. A YAML list or map in its place is a
  list or map of expressions, its keys being texts.

A plain text inside an expression stands in single quotes: `form == 'wrapper'`.

### Expressions

From the strongest binding to the weakest:

| form | meaning |
|---|---|
| `x.name` `x[i]` `x[a:b]` `f(x, key=y)` | attribute or entry, item, slice, call |
| `a ** b` | power, groups to the right |
| `-x` | |
| `a * b` `a / b` `a // b` `a % b` `a @ b` | `/` always gives a number; `//` and `%` round down; `@` multiplies matrices |
| `a + b` `a - b` | `+` also joins texts and lists; `list * n` repeats one |
| `==` `!=` `<` `<=` `>` `>=` `in` | at most one of them in a row: join several with `and` |
| `not a` | |
| `a and b` | |
| `a or b` | |
| `a if c else b` | |

Beside these: `(x)`, `[x, y]`, `{'key': x}`, `[f(x) for x in xs if c]`, `{k: v for k, v in pairs}`, `'text'` (with `\'`,
`\\`, `\n`, `\t`), integers, numbers such as `0.5` and `1e-2`, `true`, `false`, `none`, `inf`.

- Only a boolean is a condition. `and`, `or` and `if` evaluate what they need and no more.
- Numbers are equal when their values are; values of two different types never are, so `1 != true`.
- A tensor can be compared with `none` only; for its values there is `expect_equal`.
- Integers have 64 bits, and overflow is an error, as is division by zero.
- `f(...)` calls the module that is named `f` when there is one, and the function `f` otherwise.
- Each rank evaluates an expression when its step runs, from left to right. Random functions draw from that rank's
  generator.
- `skip`, `expect_failure` and a stage's `world_size` are evaluated before anything is launched. They know parameters,
  matrix names, `world_size`, `launch`, `device`, and the functions on plain values.

### Names that are always there

| name | is |
|---|---|
| `rank` | this rank, from 0 |
| `world_size` | number of ranks |
| `device` | the device of the case: `'cpu'`, `'sim'` or `'cuda'` |
| `device_index` | this rank's index of it |
| `launch` | `'process'` or `'thread'` |
| `all_ranks` | the mesh of all ranks |
)page";

inline constexpr std::string_view names_section = R"page(
## Names and paths

`as`, `let`, `forward`, `for_each` and `index` bind names: lower-case letters, digits and `_`, a letter first. A file is
one scope, so what a loop binds is there after it; a call of a routine has a scope of its own. Binding a name again lets go
of what it stood for. Parameters, matrix names and the names above cannot be bound. Using a name that no earlier step binds
is an error of the file; using one whose step did not run makes the case INVALID.

A path is a bound name and parts after it, with dots between: `model.layers.0.attention`. In a part, `*` stands for any
characters, `?` for one and `[abc]` for one of these; a part `**` stands for any number of parts. `model.*` means the
children of the model and not the model. What matches comes in registration order, each object once, and matching nothing
is an error. Paths and names never show wrappers.

Files and folders lie in the case's own folder. With a leading `/` they are looked up beside a scenario of your
own, then under the folder of scenarios, for reading.

## Models

`model: Sequential(Linear(16, 15), ReLU(), Linear(15, 8))` builds a tree of modules from these, and from the models that
the file defines itself:

)page";

inline constexpr std::string_view own_models_section = R"page(
A model of the file's own stands under `models`, by a name with an upper-case letter first, with these keys:

)page";

inline constexpr std::string_view own_models_example = R"page(
Within its expressions the model's own names come first. Calling a child runs the hooks on it.

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

A step is a map with one verb. Beside the verb it may have:

)page";

inline constexpr std::string_view verbs_section = R"page(
## Verbs

In the tables, `*` marks the argument that may be given alone (`seed: 42` is `seed: {value: 42}`), `?` one that may be left
out, `= x` the default, `a|b` the words to choose from, and the arrow what `as` names. A verb without arguments to give is
written `barrier: {}`.
)page";

inline constexpr std::string_view collectives_note = R"page(
`mesh` is the group they run in, and ranks are counted within it. With `async: true` a collective returns at once and gives
a handle for `wait`.
)page";

inline constexpr std::string_view hooks_section = R"page(
A hook goes with `modules`, `parameters` or `optimizer`, depending on where it runs:

| at | goes with | runs |
|---|---|---|
)page";

inline constexpr std::string_view hooks_end = R"page(
Its steps may use `module`, `parameter`, `inputs`, `named_inputs`, `outputs` and `recomputing`. Names in it are looked up
when it runs, so a hook made in a loop must not use what the loop binds. It runs innermost: after what the APIs do before a
forward, and once more when the forward is recomputed.
)page";

inline constexpr std::string_view control_note = R"page(
`for_each` with several names takes each item apart: `for_each: {name: [key, value], in: "zip(ks, vs)"}`. `choose` is
written with its branches:

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
How checks judge:

- A check takes a snapshot of its operands and is judged at the end of the case, so that checking orders nothing and hides
  no race. Reading a value into plain arithmetic (`item`, a condition on a tensor's value, `record`) does wait for it.
- A case passes when all of its checks hold and at least one gathered evidence. A comparison of all zeros with all zeros, of
  a storage with itself, or of nothing, is counted as trivial and is no evidence. Not-a-number equals nothing.
- A check that something is absent or bounded is trivial too where nothing happened: `peak_bytes` of a window that allocated
  nothing of its purposes, `seconds`, `counts()` or no collectives of a window in which no step worked, events of a window in
  which the model had none. A step works unless it observes, checks or steers; a `let` works when it calls a module or
  computes with tensors.
- A condition of `expect` counts under `conditions`, not as a comparison.
- `expect_equal` of floating-point values holds when |a - b| <= atol + rtol * |b| + of_largest * max|b|. Unless given, the
  tolerances follow from the type:

  | type | rtol | atol |
  |---|---|---|
  | float32 | 1.3e-6 | 1e-5 |
  | float64, and numbers | 1e-7 | 1e-7 |
  | float16 | 1e-3 | 1e-5 |
  | bfloat16 | 1.6e-2 | 1e-5 |
  | all else | equal | equal |

  Types and shapes must agree; a number stands for a tensor full of it. Lists and maps are compared item by item (keys in
  order), and max|b| is taken over all items together. Models agree when their parameters' names in order, values, buffers
  and, unless `gradients: false`, gradients do. `bits: true` asks for the same bits.
- `expect_equal` and `expect_different` may be given as a list: `expect_equal: [actual, expected]`.
- `expect` takes one condition or a list of them. A condition made of constants alone is refused: it would say nothing about
  the run.
- `expect_collectives` looks at what a window (`observe`) saw, after `phase`, `mesh` and `dtype` have narrowed it.
  `exactly: {data_parallel: {all_reduce: 2}}` names everything there is, `total` the number of all, `bytes` the bytes in the
  form of `exactly`. `start_up` and `checkpoint` count only where they are named.
- Ranks must issue a collective of the families `user`, `tensor_parallel` and `checkpoint` at one line of one file (in a
  routine: the routine's line), with one shape, `dim`, device and mesh axis. Where ranks take different branches on
  purpose, `place: name` on the steps of each branch says so. `send` and `receive` may stand anywhere.
- `raises` expects an error. A step that should fail and does not is a failure of the case. A message that would fit any
  error is refused.

## Functions
)page";

inline constexpr std::string_view routines_section = R"page(
## Attributes

)page";

inline constexpr std::string_view attributes_end = R"page(
Of a module, an attribute is a child, parameter, buffer or method; children with numbers are `m.0` or `m[i]`. Of a mesh with
named axes, the name of an axis is this rank's slice along it: `world.dp`, `world.dp.rank`, `world.dp.size`. Of a map, an
attribute is an entry.

## Routines

Steps that several scenarios share stand in `scenarios/lib/NAME.yaml`:

)page";

inline constexpr std::string_view routines_end = R"page(
```yaml
routine: average_gradients
summary: Average every gradient over the ranks of a mesh, by hand.
parameters:
  model: model
  mesh: {type: mesh, default: all_ranks}
steps:
  - for_each: {name: p, in: parameters(model)}
    steps:
      - all_reduce: {tensor: p.grad, op: mean, mesh: mesh}
        when: p.grad != none
```

`use: average_gradients` runs it, with its arguments under `with`, and takes what it gives with `as`:
`as: {its_name: my_name}`. A routine sees its parameters and the names that are always there, nothing else of the caller.
Arguments are values, so inputs that change from one iteration to the next are given as a list. Defaults are literal, or
`all_ranks`. Routines may use others, 8 deep, and never themselves.

)page";

inline constexpr std::string_view yaml_section = R"page(
## YAML

Some things that YAML allows are refused, because they are easily read in two ways: the plain words `yes`, `no`, `on`, `off`,
`null` and `~` in any casing, `True` and `FALSE` and the like, integers with leading zeros, merge keys (`<<`), tags, keys
that stand twice, aliases within what they stand for, and a second document in a file. Quoted, any of the words is a text.

Within `{}` and `[]`, YAML ends a plain value at a comma, bracket or brace. An expression with one of these must be quoted
there: `forward: {loss: "sum(model(x, y))"}`. On a line of its own it need not be.

## Limits

)page";

}  // namespace lockstep::scenario::prose
