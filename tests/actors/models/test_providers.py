"""Providers: their names, how a configuration reaches them, and which keys are secrets."""

from pathlib import Path

import attrs
import pytest

from motet.actors.hosting.config import load_config
from motet.actors.models.catalog import KNOWN, Billed, ModelCatalog, keys_of, providers_of
from motet.actors.models.openai import OllamaModel, server_url
from motet.protocols.config import ModelsConfig, ProviderConfig
from motet.protocols.errors import ConfigError
from motet.protocols.models import OutputSchema


def test_the_configuration_has_a_section_for_every_provider() -> None:
    places = {"concurrency", "per_user", "per_session"}
    sections = {field.name for field in attrs.fields(ModelsConfig)} - {"offered"} - places
    assert set(KNOWN) == sections


@pytest.mark.parametrize("provider", KNOWN)
def test_a_model_uses_the_server_and_key_of_its_section(provider: str, tmp_path: Path) -> None:
    url, file = "http://127.0.0.1:9/v1", tmp_path / "motet.toml"
    file.write_text(f'[models.{provider}]\nbase_url = "{url}"\n')
    config = load_config(file).models
    model = ModelCatalog(providers_of(config)).get(f"{provider}:some:model")
    assert model.name == f"{provider}:some:model"
    assert isinstance(model, Billed)
    assert model.base_url == url


OWN = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "google": "GOOGLE_API_KEY"}
ODD = ("https://api.openai.com@evil.example", "https://evil.example\\@api.openai.com/v1")


@pytest.mark.parametrize("provider", KNOWN)
def test_a_foreign_variable_goes_to_its_provider_and_to_named_hosts_only(provider: str) -> None:
    """Law: a secret that is not the provider's own reaches no server but the provider's own, this
    machine, and the one that ``key_host`` names."""

    def sends(url: str | None, variable: str = "AWS_SECRET", key_host: str | None = None) -> bool:
        section = ProviderConfig(base_url=url, api_key_env=variable, key_host=key_host)
        config, refused = ModelsConfig(), list[str]()
        object.__setattr__(config, provider, section)  # its name is no literal here
        try:
            providers_of(config)
        except ConfigError as error:
            refused.append(str(error))
        told = f"models.{provider}: the key in {variable} would be sent"
        assert all(told in text for text in refused)
        return not refused

    home = KNOWN[provider].host
    assert sends(None)
    assert sends("http://127.0.0.1:8000/v1")
    assert sends("http://[::1]:8000/v1")
    assert not home or sends(f"https://{home}/v1")
    for url in ("https://evil.example/v1", f"https://{home}.evil.example", *ODD):
        assert not sends(url)
        assert not sends(url, key_host="other.example")
    assert sends("https://Models.example:8443/v1", key_host="models.example")
    assert not sends("https://evil.example/v1", "GROQ_API_KEY")
    for owner, variable in OWN.items():
        assert sends("https://models.example/v1", variable) == (owner == provider)


def test_every_key_of_the_environment_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "groq-secret")
    monkeypatch.setenv("WORK_GEMINI", "gemini-secret")
    config = ModelsConfig(google=ProviderConfig(api_key_env="WORK_GEMINI"))
    assert {"groq-secret", "gemini-secret"} <= set(keys_of(config))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434/v1"),
        ("gpu.lan", "http://gpu.lan:11434/v1"),
        ("gpu.lan:8080", "http://gpu.lan:8080/v1"),
        ("0.0.0.0:11434", "http://127.0.0.1:11434/v1"),
        ("https://models.example/ollama/v1/", "https://models.example/ollama/v1"),
        ("https://models.example", "https://models.example/v1"),
        ("[::1]", "http://[::1]:11434/v1"),
        ("[::1]:8080", "http://[::1]:8080/v1"),
    ],
)
def test_the_server_of_ollama_has_the_form_of_its_own_programs(
    host: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_url(host) == url
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert OllamaModel("m").base_url == url


def test_ollama_enforces_a_schema_only_without_tools() -> None:
    output = OutputSchema("T", {"type": "object"})
    assert OllamaModel("m").takes_output(output, tools=False)
    assert not OllamaModel("m").takes_output(output, tools=True)
