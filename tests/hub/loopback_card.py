"""What the Hub demands of a model card's metadata, as far as this project uses it."""

from numbers import Real

from loopback_store import card_metadata

TEXTS = ("license", "pipeline_tag", "library_name", "license_name", "base_model_relation")
LISTS = ("tags", "datasets", "metrics", "language", "base_model")


def validate_card(text: str) -> tuple[list[str], list[str]]:
    """Errors and warnings."""
    try:
        metadata = card_metadata(text)
    except Exception as error:
        return [f"the metadata is not YAML: {error}"], []
    if not metadata:
        return [], ["empty or missing yaml metadata in repo card"]
    if not isinstance(metadata, dict):
        return ["the metadata must be a mapping"], []
    errors = [f'"{key}" must be a string' for key in TEXTS if not isinstance(metadata.get(key, ""), str)]
    for key in LISTS:
        value = metadata.get(key, [])
        if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(x, str) for x in value)):
            errors.append(f'"{key}" must be a string or a list of strings')
    return errors + _check_index(metadata.get("model-index", [])) + _check_emissions(metadata), []


def _check_index(index) -> list[str]:
    errors = []
    if not isinstance(index, list):
        return ['"model-index" must be a list']
    for i, model in enumerate(index):
        if not isinstance(model, dict) or not isinstance(model.get("name"), str):
            errors.append(f'"model-index[{i}].name" is required')
            continue
        for j, result in enumerate(model.get("results") or []):
            place = f"model-index[{i}].results[{j}]"
            required = [
                (("task", "type"), str),
                (("dataset", "name"), str),
                (("dataset", "type"), str),
            ]
            for (group, key), kind in required:
                if not isinstance((result.get(group) or {}).get(key), kind):
                    errors.append(f'"{place}.{group}.{key}" is required')
            for k, metric in enumerate(result.get("metrics") or []):
                if not isinstance(metric.get("type"), str) or metric.get("value") is None:
                    errors.append(f'"{place}.metrics[{k}]" needs type and value')
    return errors


def _check_emissions(metadata: dict) -> list[str]:
    emissions = metadata.get("co2_eq_emissions")
    if emissions is None or isinstance(emissions, Real):
        return []
    if not isinstance(emissions, dict) or not isinstance(emissions.get("emissions"), Real):
        return ['"co2_eq_emissions.emissions" must be a number of grams']
    return []
