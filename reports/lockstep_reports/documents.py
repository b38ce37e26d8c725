"""The tests that scenarios mirror by number, document by document."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    title: str
    about: str
    tests: dict[int, str]  # number -> name


def _document(title: str, about: str, first: int, names: str) -> Document:
    return Document(title, about, dict(enumerate(names.split(), start=first)))


DOCUMENTS = (
    _document(
        "test_compose.py",
        "checkpoint, replicate and flat sharding composed",
        1,
        """wrap_same_submodule checkpoint_fsdp_submodules_non_reentrant checkpoint_fully_shard_cast_forward_inputs
        fully_shard_replicate_correct_replicate_params checkpoint_fsdp_submodules_with_param
        checkpoint_fsdp_submodules_with_param_no_shard composable_fsdp_replicate fully_shard_replicate_composability
        state_dict_fsdp_submodules""",
    ),
    _document(
        "test_fully_shard_state_dict.py",
        "state dicts of per-parameter sharding",
        10,
        "1d_state_dict_save_load 1d_state_dict_cpu_offload 2d_state_dict_save_load rank0_offload_full_state_dict",
    ),
    _document(
        "test_replicate.py",
        "data parallelism by averaged gradients",
        14,
        """replicate_single_module_save_load replicate_non_root_multiple_save_load replicate_single_module
        replicate_move_args_kwargs_to_device replicate_ignore_module replicate_multi_module replicate_with_kwargs
        replicate_device_id replicate_wrong_device_id_type""",
    ),
    _document(
        "test_fsdp_tp_integration.py",
        "flat sharding over tensor parallelism",
        23,
        "fsdp_tp_integration fsdp_tp_extension_grad fsdp_tp_sync_module_state",
    ),
    _document(
        "test_fully_shard_training.py",
        "training with per-parameter sharding",
        26,
        """root_move_forward_input_to_device param_registration_after_forward param_registration_after_backward
        to_float64_after_init train_parity_single_group train_parity_multi_group
        train_parity_multi_group_cpu_offload_eager non_root_forward_backward multi_forward_module explicit_prefetching
        post_optim_event train_parity_with_activation_checkpointing train_parity_with_shared_params
        gradient_accumulation 1f1b_microbatching train_parity_2d_mlp tp_with_fsdp_offloading
        train_parity_2d_transformer_checkpoint_resume 2d_mlp_with_nd_mesh train_parity_hsdp
        register_fsdp_forward_method""",
    ),
)

NUM_TESTS = sum(len(document.tests) for document in DOCUMENTS)
assert [number for document in DOCUMENTS for number in document.tests] == list(range(1, 47))
