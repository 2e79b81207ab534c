"""What makes a run tiny, on data that come with Python, with scikit-learn, or are made: what quick runs set."""

COMMON = ("--per_device_train_batch_size", "16", "--per_device_eval_batch_size", "32", "--eval_steps", "0.5")
DIGITS = (
    *("--dataset", "digits", "--dataset.limit", "80", "--model.image_size", "8", "--patch_size", "4"),
    *("--hidden_size", "8", "--num_hidden_layers", "1", "--intermediate_size", "8"),
    *COMMON,
)
VALIDATED_DIGITS = (*DIGITS, "--dataset.validation", "20")
PYDOCS = (
    *("--dataset", "pydocs", "--dataset.limit", "20000", "--hidden_size", "16", "--num_hidden_layers", "1"),
    *("--num_attention_heads", "2", *COMMON),
)
LISTOPS = (
    *("--dataset", "listops", "--dataset.limit", "60", "--dataset.evaluation_limit", "30"),
    *("--dataset.options", "{shortest: 5, longest: 20}", "--max_position_embeddings", "20"),
    *("--hidden_size", "8", "--num_hidden_layers", "1", "--num_attention_heads", "2", "--intermediate_size", "8"),
    *COMMON,
)
