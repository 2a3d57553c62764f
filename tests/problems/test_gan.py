"""The GAN: its printed loss, its judge, its columns and its pictures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

import sagda
from sagda.commands.main import main
from sagda.data.federation import Federation, Table
from sagda.keys import key_of, root_key
from sagda.problems.gan import DigitClassifier, frechet
from sagda.report.pictures import sheet
from sagda.runs.results import read_pictures, read_results


@pytest.fixture(scope="module")
def digits() -> Federation:
    return sagda.partition(sagda.load("digits").train, clients=10, samples=60)


def small(digits, **options):
    return sagda.GAN.of(digits, latent=4, width=8, **options)


def test_the_loss_is_the_printed_one(digits):
    problem = small(digits)
    z = problem.init(root_key(3))
    rows = Table(digits.data.features[:7], digits.data.label[:7])
    key = root_key(5)
    found = problem.loss(z, rows, key)
    noise = jax.random.normal(key_of(key, "latent"), (7, 4))
    generated = problem.generator.outputs(z.x, noise)
    D = lambda rows: (
        1 / (1 + np.exp(-np.asarray(problem.discriminator.apply(z.y, rows))))
    )
    expected = np.log(D(rows.features)) + np.log(1 - D(generated))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert generated.min() > 0
    assert generated.max() < 1


def test_logs_are_safe_where_the_discriminator_is_sure(digits):
    problem = small(digits)
    z = problem.init(root_key(0))
    sure = sagda.Point(z.x, jax.tree.map(lambda a: 1e3 * a, z.y))
    rows = Table(digits.data.features[:50], digits.data.label[:50])
    value, slope = jax.value_and_grad(
        lambda z: problem.loss(z, rows, root_key(1)).mean()
    )(sure)
    assert np.isfinite(value)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(slope))


def test_noise_and_l2_change_what_they_should(digits):
    rows = Table(digits.data.features[:9], digits.data.label[:9])
    plain, noisy = small(digits), small(digits, noise=0.5)
    z, key = plain.init(root_key(0)), root_key(1)
    assert not np.allclose(plain.loss(z, rows, key), noisy.loss(z, rows, key))
    held = small(digits, l2=0.2)
    size = sum(float((a**2).sum()) for a in jax.tree.leaves(z.y))
    np.testing.assert_allclose(
        held.loss(z, rows, key), plain.loss(z, rows, key) - 0.1 * size, rtol=1e-5
    )


def test_the_frechet_distance_is_the_textbook_one():
    rng = np.random.default_rng(0)
    a, b = (
        rng.normal(size=(300, 5)),
        0.5 + rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)),
    )
    p, q = np.full(300, 1 / 300), np.full(200, 1 / 200)
    with jax.enable_x64(True):
        found = frechet(*map(jnp.asarray, (a, p, b, q)))
    A, B = np.cov(a.T, bias=True), np.cov(b.T, bias=True)
    cross = np.trace(linalg.sqrtm(A @ B).real)
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(A) + np.trace(B)
    assert found == pytest.approx(expected - 2 * cross, rel=1e-8)


@pytest.mark.parametrize(("name", "least"), [("digits", 0.9), ("mnist", 0.97)])
def test_the_judges_know_their_digits(name, least):
    if name == "mnist":
        mnist_or_skip()
    test = sagda.load(name).test
    judge = DigitClassifier.of(test.features.shape[1])
    kinds = judge.kinds(judge.hidden(jnp.asarray(test.features)))
    assert (np.asarray(kinds) == test.label).mean() > least


def mnist_or_skip():
    try:
        sagda.load("mnist")
    except ValueError as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
def test_a_run_has_a_gan_s_columns_and_pictures(tmp_path, capsys):
    out = tmp_path / "gan"
    words = [
        *("--problem", "gan", "--data", "digits", "--clients", "10", "--samples", "60"),
        *("--rounds", "4", "--eval-every", "2", "--local-steps", "2"),
        *("--set", "latent=4", "--set", "width=8"),
    ]
    assert main(["run", *words, "--out", str(out)]) == 0
    assert "Fréchet" in capsys.readouterr().out
    found = read_results(out)
    columns = found.columns["sagda-i"]
    assert found.main == "grad_x_sq"
    shares = sum(columns[f"share_{k}"] for k in range(10))
    np.testing.assert_allclose(shares, 1, rtol=1e-4)
    assert (columns["frechet"] > 0).all()
    assert "grad_phi_sq" not in columns
    (pictures,) = read_pictures(out).values()
    assert pictures.shape == (50, 8, 8)
    assert sheet(pictures).startswith(b"\x89PNG")
    assert "data:image/png;base64" in (out / "report.html").read_text()


@pytest.mark.slow
def test_the_gradients_are_those_of_f(digits):
    """In the measured columns, against finite differences along the gradient."""
    problem = small(digits)
    run = sagda.simulate(
        sagda.fsgda(local_steps=1), problem, digits, rounds=1, float64=True
    )
    z = jax.tree.map(lambda a: a[0], run.z)
    with jax.enable_x64(True):
        rows = Table(
            jnp.asarray(digits.data.features, float), jnp.asarray(digits.data.label)
        )
        f = lambda z: problem.loss(z, rows, root_key(0)).mean()
        slope = jax.grad(f)(z)
        step = 1e-6
        for half in ("x", "y"):
            g = getattr(slope, half)
            move = lambda s, g=g, half=half: jax.tree.map(
                lambda a, b: a + s * b, getattr(z, half), g
            )
            other = {"x": z.y, "y": z.x}[half]
            at = lambda s, half=half, move=move, other=other: f(
                sagda.Point(move(s), other)
                if half == "x"
                else sagda.Point(other, move(s))
            )
            size = (at(step) - at(-step)) / (2 * step)
            assert run.history[f"grad_{half}_sq"][0, -1] == pytest.approx(
                float(size), rel=1e-4
            )
