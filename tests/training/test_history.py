"""history.csv and curves.png tell of a run; they never cost it."""

from types import SimpleNamespace

from runs import make_trainer
from transformers.trainer_callback import TrainerState

from hf_efficient.training.history import HistoryCallback


def test_a_full_disk_costs_no_run(tmp_path, caplog):
    for name in (".history.csv.tmp", "curves.png"):  # what is written first
        (tmp_path / name).symlink_to("/dev/full")
    trainer = make_trainer(tmp_path, num_train_epochs=1, save_strategy="no", load_best_model_at_end=False)
    trainer.train()
    assert trainer.state.global_step == 5
    for name in ("history.csv", "curves.png"):
        assert f"{name} can't be written: [Errno 28] No space left on device. Training goes on" in caplog.text


def test_what_could_not_be_written_is_written_with_the_next_log(tmp_path):
    callback, args, file = HistoryCallback(), SimpleNamespace(output_dir=tmp_path), tmp_path / "history.csv"
    state = TrainerState(is_world_process_zero=True, log_history=[{"step": 1, "loss": 3.0}])
    callback.on_train_begin(args, state, None)
    file.rename(tmp_path / "before")
    file.mkdir()
    for step, loss in ((2, 2.0), (3, 1.0)):
        state.log_history.append({"step": step, "loss": loss})
        callback.on_log(args, state, None)
        if file.is_dir():
            file.rmdir()
    assert file.read_text() == "step,epoch,loss\n1,,3.0\n2,,2.0\n3,,1.0\n"
