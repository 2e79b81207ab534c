"""The faults that this project promises to survive, and the tests that show it for each.

A fault in a library below us is handled by our layer; where that can't be, a line in brackets says why.
"""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
FAULTS = """
# Hub
1 pushed, then loaded elsewhere with trust_remote_code: equal logits
    hub/test_round_trip.py::test_01_a_pushed_model_loads_elsewhere_with_equal_logits
    hub/test_round_trip.py::test_01_shards_and_code_on_a_branch
    hub/test_round_trip.py::test_01_transformers_own_push_works_too
2 pipeline(repo_id) without a task
    hub/test_round_trip.py::test_02_a_pipeline_knows_its_task
3 pushed twice: no second commit
    hub/test_push.py::test_03_pushed_twice_there_is_no_second_commit
4 503 twice in an upload: succeeds, stored intact
    hub/test_faults.py::test_04_unavailable_twice_then_stored_intact
    hub/test_faults.py::test_04_everything_fails_once
5 a commit answered with 500: repeated, or an error with the head unmoved
    hub/test_faults.py::test_05_a_commit_that_fails_once_is_repeated
    hub/test_faults.py::test_05_a_commit_that_always_fails_leaves_the_head_and_the_next_push_succeeds
6 a Hub that hangs: an error within a stated time
    hub/test_faults.py::test_06_a_hub_that_hangs_in_a_push_is_an_error_in_time
    hub/test_faults.py::test_06_a_hub_that_hangs_in_a_pull_is_an_error_in_time
    hub/test_faults.py::test_06_afterwards_the_client_is_as_before
    hub/test_faults.py::test_06_after_the_deadline_no_thread_goes_on
    hub/test_faults.py::test_06_a_request_that_hangs_leaves_time_for_another
    hub/test_faults.py::test_06_a_timeout_that_is_none_is_named
    hub/test_push_and_pull_commands.py::test_06_a_command_ends_within_two_seconds_of_its_deadline
    cli/test_command_line.py::test_a_command_does_not_look_for_garbage_when_it_is_done
    hub/test_round_trip.py::test_06_all_that_is_left_to_push_has_one_deadline
7 a reset in a download: repeated
    hub/test_faults.py::test_07_a_reset_in_a_download_is_repeated
    [by hub.pull; from_pretrained with a repository's name is the client's own and gives up]
8 a flipped byte: detected, not loaded
    hub/test_faults.py::test_08_a_flipped_byte_is_detected_and_the_file_fetched_again
    hub/test_faults.py::test_08_a_byte_that_is_always_flipped_is_an_error_and_leaves_nothing_to_load
    hub/test_faults.py::test_08_a_flipped_byte_in_a_small_file_is_detected
    hub/test_faults.py::test_08_verify_names_what_differs
    hub/test_round_trip.py::test_08_what_is_damaged_is_not_loaded
    [by hub.pull; from_pretrained with a repository's name compares nothing]
9 a download that is cut, stalls, or whose range is ignored: an intact file
    hub/test_faults.py::test_09_a_download_that_ends_too_early_is_completed
    hub/test_faults.py::test_09_a_long_download_is_continued_even_if_ranges_are_ignored
10 kill -9 in a download: the next call is intact
    hub/test_faults.py::test_10_killed_in_a_download_the_next_call_is_intact
11 a token that is missing, wrong or may only read: a clear line, no traceback
    hub/test_push_and_pull_commands.py::test_11_no_token
    hub/test_push_and_pull_commands.py::test_11_a_wrong_token
    hub/test_push_and_pull_commands.py::test_11_a_token_that_may_only_read
    hub/test_push_and_pull_commands.py::test_11_somebody_elses_repository
    hub/test_round_trip.py::test_11_a_trainer_with_a_wrong_token_stops_before_it_trains
12 the token reaches no other origin
    hub/test_push.py::test_12_the_token_reaches_no_other_origin
13 names that leave the folder, of files, shards and a tokenizer's files: refused
    hub/test_push.py::test_13_hostile_names_are_refused_and_nothing_is_written
    hub/test_push.py::test_13_hostile_names_in_a_shard_index_are_refused
    hub/test_push.py::test_13_tokenizers_that_name_files_outside_are_refused
    hub/test_round_trip.py::test_13_a_local_shard_index_that_points_outside_is_refused
    hub/test_round_trip.py::test_13_a_local_tokenizer_that_points_outside_is_refused
    training/test_checkpoints.py::test_shards_are_read_and_outside_paths_refused
    [by hub and our models; AutoTokenizer alone is transformers' own and reads what it is told]
14 no token in any pushed byte, Trainer included
    hub/test_push.py::test_14_a_file_with_the_token_is_refused
    hub/test_push.py::test_14_a_file_with_the_token_of_somebody_else_is_refused
    hub/test_round_trip.py::test_14_a_trainer_with_a_token_leaks_it_nowhere
    hub/test_training.py::test_14_the_token_of_a_script_is_seen_nowhere
    training/test_checkpoints.py::test_secrets_are_not_written
15 offline: what is cached loads without a request, the rest is a clear error
    hub/test_round_trip.py::test_15_offline_what_is_cached_loads_without_a_request_and_the_rest_is_a_clear_error
16 a push that fails in mid-training: the run survives and says so
    hub/test_round_trip.py::test_16_a_push_that_fails_in_training_is_told_and_made_up_for
    hub/test_round_trip.py::test_16_a_hub_that_is_away_does_not_stop_training
    hub/test_round_trip.py::test_16_a_last_push_that_fails_is_an_error_and_leaves_the_run_whole
    hub/test_training.py::test_16_pushes_that_fail_are_told_and_made_up_for_when_training_is_over
17 the card passes validate-yaml, and its metrics are the evaluation's
    hub/test_push.py::test_17_a_card_is_validated_before_anything_is_sent
    hub/test_loopback.py::test_17_cards_are_judged
    hub/test_training.py::test_17_the_card_of_a_run_is_valid_and_says_what_its_evaluation_found

# Loading
18 without trust_remote_code: refused, the flag is named, no terminal needed
    models/test_remote_code_loading.py::test_without_the_flag_it_is_refused
19 a pickle among weights or in a checkpoint: not executed; safetensors only are written
    models/test_damaged_checkpoints.py::test_only_safetensors_are_written
    models/test_damaged_checkpoints.py::test_a_pickle_among_the_weights_is_not_executed
    models/test_damaged_checkpoints.py::test_a_pickle_in_a_checkpoint_is_not_executed
    training/test_checkpoints.py::test_a_pickle_in_a_checkpoint_is_not_executed
20 broken safetensors: an error
    models/test_damaged_checkpoints.py::test_broken_safetensors_are_an_error
21 missing, unexpected, misshapen and NaN weights: reported
    models/test_damaged_checkpoints.py::test_missing_and_unexpected_weights_are_reported
    models/test_damaged_checkpoints.py::test_another_shape_is_an_error
    models/test_damaged_checkpoints.py::test_weights_that_are_no_numbers_are_reported
22 a checkpoint of an earlier release: loads, same logits
    models/test_golden.py::test_it_still_loads_and_gives_the_same

# Config
23 a wrong type: the field is named
    models/test_models_common.py::test_config_errors_name_the_field
    models/compressive_performer/test_compressive_performer_config.py::test_wrong_types_are_named
24 impossible sizes: a ValueError that names them, when the config is made
    models/test_robustness.py::test_negative_sizes_are_named
    models/test_robustness.py::test_a_patch_larger_than_the_image_is_named
    models/kerformer_vit/test_kerformer_vit.py::test_bad_fields
    models/mobilevit_v2/test_mobilevit_v2_config.py::test_a_wrong_field_is_named
    models/compressive_performer/test_compressive_performer_config.py::test_what_is_wrong_is_named
25 an unknown key: refused, the nearest is named
    models/test_models_common.py::test_config_errors_name_the_field
    models/compressive_performer/test_compressive_performer_config.py::test_what_is_wrong_is_named
    training/test_run.py::test_what_is_wrong_is_named
26 id2label of another length than num_labels: an error
    models/test_models_common.py::test_config_errors_name_the_field
    models/test_models_common.py::test_a_new_number_of_labels_replaces_the_head
27 a config.json that was cut, or of no known model_type: a clear error
    models/test_damaged_checkpoints.py::test_a_config_that_was_cut_is_an_error
    models/test_damaged_checkpoints.py::test_a_config_of_no_known_model_is_an_error

# Checkpoints
28 resumed within an epoch and at its end, dropout on: bit-identical
    training/test_resume.py::test_killed_in_a_step
    training/test_resume.py::test_killed_under_other_settings
    training/test_resume.py::test_killed_between_a_step_and_the_end_of_its_epoch
    training/test_checkpoints.py::test_transformers_vit_is_resumed_and_its_best_restored
    training/test_memory_trainer.py::test_resume_is_bit_identical
29 load_best_model_at_end: every tensor is the best step's
    training/test_checkpoints.py::test_the_best_step_is_restored_in_every_tensor
    training/test_checkpoints.py::test_transformers_vit_is_resumed_and_its_best_restored
30 kill -9 in save_pretrained: the weights before load, and leftovers go
    models/test_robustness.py::test_a_save_that_is_killed_or_finds_no_room_leaves_the_model_before
    test_remote_code.py::test_a_save_that_fails_leaves_whole_files
31 kill -9 between two files of a checkpoint, or the newest one damaged: back to the one before
    training/test_checkpoints.py::test_a_run_killed_between_two_files_of_a_checkpoint
    training/test_checkpoints.py::test_a_run_falls_back_to_the_checkpoint_before
    training/test_checkpoints.py::test_a_damaged_checkpoint_is_skipped_and_named
    training/tasks/test_image_classification.py::test_killed_and_started_again_by_the_same_command
32 a full disk: an error, what was there stays
    models/test_robustness.py::test_a_save_that_is_killed_or_finds_no_room_leaves_the_model_before
    training/test_checkpoints.py::test_a_full_disk_costs_no_checkpoint
33 SIGTERM or Ctrl-C: a checkpoint, an exit code, resumable
    training/test_resume.py::test_a_signal_saves_and_ends
34 saved and loaded: bit-equal, tied weights stay tied
    models/test_models_common.py::test_saved_and_reloaded_is_bit_equal
    models/compressive_performer/test_compressive_performer_config.py::test_saved_and_reloaded_it_is_the_same_to_the_bit
    models/compressive_performer/test_compressive_performer_config.py::test_tied_weights_stay_tied

# Numbers
35 the same seed: the same run
    training/test_trainer.py::test_the_same_seed_is_the_same_run
36 a row does not depend on the batch
    models/test_models_common.py::test_rows_of_a_batch_do_not_see_each_other
    models/compressive_performer/test_compressive_performer_equivalence.py::test_padding_changes_nothing
37 padding, chunks and memory: as if alone and whole; a reset is a fresh start
    models/compressive_performer/test_compressive_performer_equivalence.py::test_padding_changes_nothing
    models/compressive_performer/test_compressive_performer_equivalence.py::test_any_split_into_calls_gives_the_same
    models/compressive_performer/test_compressive_performer_equivalence.py::test_rows_go_on_from_different_places
    models/compressive_performer/test_compressive_performer_equivalence.py::test_a_row_that_is_reset_begins_anew
    models/compressive_performer/test_compressive_performer_generation.py::test_left_padded_prompts_are_as_if_alone
38 a row of NaN leaves the others alone; a loss of NaN stops training
    models/test_robustness.py::test_an_image_of_nan_leaves_the_others_alone
    models/test_robustness.py::test_a_text_of_nan_leaves_the_others_alone
    attention/test_contract.py::test_rows_of_a_batch_do_not_meet
    training/test_trainer.py::test_what_is_no_number_stops_training_before_it_spoils_weights
39 half precision, extreme inputs: finite
    models/test_robustness.py::test_extreme_images_have_finite_outputs_in_half_precision
    models/test_robustness.py::test_extreme_embeddings_have_finite_logits_in_half_precision
    attention/test_contract.py::test_finite
40 gradient checkpointing, reentrant or not: equal gradients
    models/test_models_common.py::test_gradient_checkpointing_gives_the_same_gradients
    models/compressive_performer/test_compressive_performer_gradients.py::test_checkpointing_changes_no_gradient
41 two processes equal one, with a rank killed and with sharded weights too; fewer than asked for: a warning
    training/tasks/test_image_classification.py::test_two_processes_equal_one_with_the_same_global_batch
    training/test_memory_trainer.py::test_two_processes_equal_one
    training/test_sharded.py::test_it_equals_one_process
    training/test_two_hosts.py::test_two_hosts_equal_one_process
    training/test_processes.py::test_one_process_instead_of_two
    training/test_sharded.py::test_the_documented_run_is_one_that_can_be_sharded
    layers/test_patch_selection.py::test_an_image_is_drawn_the_same_whatever_is_beside_it
42 made on meta, nothing meta after loading; on meta, exported and compiled: equal
    models/test_devices.py::test_training_neither_waits_nor_copies
    models/test_devices.py::test_a_step_of_decoding
    models/test_devices.py::test_a_step_of_fast_decoding
    models/test_devices.py::test_every_mechanism_with_padding_or_memory
    models/test_robustness.py::test_nothing_stays_on_the_meta_device
    models/test_models_common.py::test_initialisation_reaches_every_tensor
    models/test_export.py::test_every_mechanism_exports
    models/test_export.py::test_compiled_is_equal

# Bad inputs
43 every mode of image: converted, 16 bits scaled, or named
    data/test_images.py::test_ordinary_modes
    data/test_images.py::test_sixteen_bit_grey_is_scaled_and_not_clipped
    data/test_images.py::test_modes_without_a_range_are_refused
    data/test_image_processor.py::test_every_mode_is_seen_as_the_picture_it_shows
    data/test_image_processor.py::test_what_has_no_pixels_or_too_many_bits
    [by our processor; pipeline() converts images itself before any processor sees them]
44 0x0 pixels: a ValueError; 1x1 and 1x4000: an answer
    data/test_images.py::test_images_without_pixels_are_refused
    data/test_image_processor.py::test_what_has_no_pixels_or_too_many_bits
    models/test_pipelines.py::test_thin_images_are_classified
    [by our processor; pipeline() converts images itself before any processor sees them]
45 an image that is cut, none, or missing: file or row named, or skipped and counted
    data/test_damaged_images.py::test_a_file_that_is_no_image_is_named_or_skipped
    data/test_image_sets.py::test_a_corrupt_image_is_named_or_skipped
46 a PNG of 60000 x 60000 pixels: DecompressionBombError
    data/test_damaged_images.py::test_a_bomb_is_not_decoded
    data/test_damaged_images.py::test_a_file_that_is_no_image_is_named_or_skipped
47 a truncated parquet file: named
    data/test_image_sets.py::test_a_truncated_parquet_file_is_named
    data/test_image_sets.py::test_damage_inside_a_parquet_file_is_named
48 an empty batch or prompt, unknown tokens, wrong sizes: a ValueError that names them
    models/test_robustness.py::test_an_empty_batch_is_named
    models/test_robustness.py::test_an_empty_prompt_is_an_error_and_a_long_one_is_none
    models/compressive_performer/test_compressive_performer_memory.py::test_bad_input_is_named
    models/compressive_performer/test_compressive_performer_generation.py::test_an_unknown_token_in_a_prompt_is_named
    models/kerformer_vit/test_kerformer_vit.py::test_bad_images
    models/test_models_common.py::test_wrong_channels_are_named
49 a label out of range: label and number of labels are named
    models/test_models_common.py::test_labels_out_of_range_are_named
    data/test_image_sets.py::test_a_label_out_of_range_is_named

# Nothing lost, nothing wrong without a word
50 two runs in one folder: one goes on, the other is told whose it is; what kill -9 left is taken over
    training/test_folder_lock.py::test_a_second_run_is_told_whose_the_folder_is
    training/test_folder_lock.py::test_all_processes_of_a_run_are_refused
    training/test_folder_lock.py::test_another_host_is_watched_for_signs_of_life
    training/test_folder_lock.py::test_without_locks_of_the_file_system
51 a checkpoint vanishes while it is loaded: an error, not fewer files
    training/test_checkpoints.py::test_a_checkpoint_that_vanishes_while_it_is_loaded_is_an_error
52 weights that are NaN or infinite: never saved
    training/test_trainer.py::test_weights_that_are_no_numbers_are_never_saved
    training/test_trainer.py::test_checkpoints_before_the_weights_were_spoiled_are_finite
53 a note in a config: saved and read
    models/test_models_common.py::test_what_a_config_was_given_beside_its_fields_is_saved_and_read
54 transparent images: the same pixels in training and prediction
    data/test_images.py::test_what_is_transparent_is_white_in_training_and_prediction
    data/test_images.py::test_training_and_prediction_read_the_same_pixels
55 pretrained weights of another model: mapped, or an error
    training/test_build_model.py::test_the_type_goes_before_that_of_the_pretrained_weights
    training/test_build_model.py::test_a_backbone_that_does_not_fit_is_an_error
    training/test_build_model.py::test_a_model_that_cannot_become_another_is_an_error
56 a model evaluated later: with its run's settings, and the same scores
    training/test_evaluation.py::test_a_language_model_is_evaluated_as_it_was_in_training
    training/test_evaluation.py::test_a_classifier_is_evaluated_as_it_was_in_training
57 a card of a frozen backbone: no patches were dropped
    test_model_card.py::test_a_frozen_backbone_dropped_no_patches
58 a link that leads out of the folder: not pushed
    hub/test_push.py::test_links_that_lead_out_of_the_folder_are_not_shared
59 a request for 10**12 tokens, for -1, or after nothing: refused, and the server goes on
    interop/test_serving.py::test_faults_are_answered_and_the_server_goes_on

# Bad input, and a Hub in bad weather
60 a number that a training argument can't be: one line, the field, what would be right
    training/test_argument_ranges.py::test_every_number_has_a_range
    training/test_argument_ranges.py::test_what_it_cannot_be_is_named
    training/test_argument_ranges.py::test_zero_is_refused_where_it_means_nothing
    cli/test_bad_input.py::test_values
61 an unknown metric, tracker, optimizer or data set: named, with those that there are
    cli/test_bad_input.py::test_values
    cli/test_bad_input.py::test_a_data_set_that_is_not_there
    training/test_argument_ranges.py::test_what_does_not_fit_is_named
62 scales and sizes of a model beyond all bounds, or larger than the memory: refused before it is made
    cli/test_bad_input.py::test_values
    cli/test_bad_input.py::test_values_of_transformers_own_models
    cli/test_bad_input.py::test_values_that_transformers_own_models_stumble_over
    training/test_build_model.py::test_what_does_not_fit_the_data_is_named
    models/test_robustness.py::test_scales_out_of_range_are_named
    models/test_robustness.py::test_no_number_of_a_config_is_nan
    models/test_robustness.py::test_what_is_no_number_of_labels_is_named
63 YAML that nests too deep, expands its aliases without end, or has keys that are no words: one line
    cli/test_bad_input.py::test_yaml
    cli/test_bad_input.py::test_a_run_yaml_that_is_garbage
64 damaged weights and configs, images that are none, folders that can't be written to: one line of every command
    cli/test_bad_input.py::test_damaged_weights
    cli/test_bad_input.py::test_a_config_that_is_garbage
    cli/test_bad_input.py::test_pretrained_weights_that_are_not_there
    cli/test_bad_input.py::test_images_that_are_none
    cli/test_bad_input.py::test_folders_that_hold_no_images
    cli/test_bad_input.py::test_folders_that_cannot_be_written_to
    cli/test_bad_input.py::test_predictions_of_what_is_no_image
65 a full disk in history and plots: the run goes on
    training/test_history.py::test_a_full_disk_costs_no_run
    training/test_folder_lock.py::test_a_full_disk
    cli/test_use.py::test_exports_that_fail
    training/test_history.py::test_what_could_not_be_written_is_written_with_the_next_log
66 NumPy arrays for a model, methods' names in a config.json: named
    models/test_robustness.py::test_arrays_are_named
    models/test_robustness.py::test_arrays_of_tokens_are_named
    models/test_robustness.py::test_a_key_that_is_a_method_is_refused
    cli/test_bad_input.py::test_a_config_with_the_names_of_methods
67 texts that are no text, say special tokens or are one line: read, or refused in one line
    cli/test_bad_input.py::test_bytes_that_are_no_text_are_trained_on
    cli/test_bad_input.py::test_text
    data/test_word_tokenizer.py::test_what_a_text_says_is_text_though_it_looks_like_a_special_token
    data/test_tokenization.py::test_a_line_may_be_of_any_length
    data/test_text_streams.py::test_bad_input
68 a Hub that answers what is no text, or loses an upload: asked again
    hub/test_faults.py::test_an_answer_that_is_no_text_is_asked_for_again
    hub/test_faults.py::test_an_upload_that_the_hub_does_not_find_is_repeated

# The second process, other people's programs
69 a budget on two processes, one of which is faster: one plan, and nobody waits for ever
    training/test_budget.py::test_two_processes_have_one_plan
70 a run on several processes that was killed, a language model's memory included: resumed
    training/test_sharded.py::test_it_equals_one_process
71 the language model in ONNX: whole segments and single tokens give what PyTorch gives, or it is an error
    models/test_export.py::test_segments_and_tokens_of_the_language_model_export
    models/test_export.py::test_onnx_of_the_language_model
    cli/test_use.py::test_export_of_the_language_model
72 other people's trainers and loops: epochs told, or a warning; each of our pieces works there
    training/test_plain_trainer.py::test_epochs_are_told
    training/test_plain_trainer.py::test_who_forgets_is_warned
    training/test_plain_trainer.py::test_a_loop_of_accelerate
    training/test_plain_trainer.py::test_exact_resume
    training/test_plain_trainer.py::test_averages_samplers_and_scores_with_a_model_of_transformers
    training/test_plain_trainer.py::test_scores_of_detectors
    training/test_plain_trainer.py::test_scores_of_language_models
    training/test_optimizers.py::test_it_works_in_a_plain_trainer
    training/test_energy_callback.py::test_evaluations_within_an_epoch
73 weights that are quantised while they are loaded, by torchao, quanto or bitsandbytes: loaded
    interop/test_quantisation.py::test_while_loading
    interop/test_other_quantisation.py::test_while_loading
"""


def listed() -> dict[int, list[str]]:
    """The tests of every fault, by its number."""
    found: dict[int, list[str]] = {}
    for line in FAULTS.splitlines():
        if heading := re.match(r"(\d+) ", line):
            assert int(heading[1]) not in found, f"{heading[1]} is there twice"
            found[int(heading[1])] = []
        elif line.startswith("    ") and not line.startswith("    ["):
            found[max(found)].append(line.strip())
    return found


@cache
def functions_of(file: Path) -> set[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_fault_has_tests_that_exist():
    faults = listed()
    assert list(faults) == list(range(1, len(faults) + 1)) and len(faults) >= 73
    assert not [number for number, nodes in faults.items() if not nodes]
    for node in [node for nodes in faults.values() for node in nodes]:
        file, _, name = node.partition("::")
        assert (TESTS / file).is_file() and name in functions_of(TESTS / file), f"there is no {node}"


def test_every_numbered_test_is_listed():
    for file in sorted((TESTS / "hub").glob("test_*.py")):
        for name in functions_of(file):
            if number := re.match(r"test_(\d\d)_", name):
                assert f"hub/{file.name}::{name}" in listed()[int(number[1])], f"{name} is missing from the list"
