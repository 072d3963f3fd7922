"""Compiled fits of one user's personal part, for CPUs: the same steps as the definition in PyTorch.

:meth:`PersonalPartUpdate.path <tacitly.neural.low_rank_sparse.personal_part.PersonalPartUpdate.path>` defines what is
computed and explains why. In PyTorch a step consists of a hundred small operations on users who are all padded to the
largest public number of rows. Here every user is computed alone, on their own rows, in memory that fits into a core's
cache. So no user's answer depends on another's, to the last bit.

A network is a vector of parameters and ``shapes`` (units and inputs of each layer). ``values`` holds a row's inputs,
followed by the outputs of each layer, one table row per row of the user.
"""

# Numba kernels are not typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacitly.simd.lazy_njit import njit

_BACKTRACK = 0.25  # as in the PyTorch definition
_TINY = 2.2250738585072014e-308

_kernel: Any = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})


@_kernel
def cross_fitted(basis, reach, metric, shapes, rows, targets, weights, penalty, growth, free, sparsity, halves):
    """Return minus the gradient in the basis, on the half of the rows that the personal part was not fitted to.

    The same half decides when to stop fitting the personal part.

    Without ``halves``, all rows are used for both; without ``free`` entries, nothing is fitted.
    """
    update, weight, own = np.zeros(basis.shape), np.zeros(basis.shape[1]), np.zeros(basis.shape[0])
    problem = basis, reach, metric, shapes, penalty, growth, sparsity, np.ones(1)
    if free == 0 or not halves:
        if free:
            _path(problem, rows, targets, weights, rows[:0], targets[:0], weights[:0], len(growth), weight, own)
        _descend(basis, shapes, rows, targets, weights, weight, own, update)
        return update
    for first in range(2):
        X, y, w = rows[first::2].copy(), targets[first::2].copy(), weights[first::2].copy()
        Z, z, v = rows[1 - first :: 2].copy(), targets[1 - first :: 2].copy(), weights[1 - first :: 2].copy()
        _path(problem, X, y, w, Z, z, v, len(growth), weight, own)
        _descend(basis, shapes, Z, z, v, weight, own, update)
    return update


@_kernel
def early_stopped(basis, reach, metric, shapes, X, y, offsets, penalty, growth, sparsity, factors, out):
    """Fill one row per user: the personal part with the number of steps and factor of b that help on held-out rows."""
    size, rank = basis.shape
    problem = basis, reach, metric, shapes, penalty, growth, sparsity, factors
    for place in range(len(out)):
        rows, targets = X[offsets[place] : offsets[place + 1]], y[offsets[place] : offsets[place + 1]]
        weights = np.ones(len(rows))
        total, weight, own = np.zeros((len(growth) + 1, len(factors))), np.zeros(rank), np.zeros(size)
        for half in range(2):
            A, a, u = rows[half::2].copy(), targets[half::2].copy(), weights[half::2].copy()
            B, b, v = rows[1 - half :: 2].copy(), targets[1 - half :: 2].copy(), weights[1 - half :: 2].copy()
            if len(b):
                total += len(b) * _path(problem, A, a, u, B, b, v, len(growth), weight, own)
        stop: Any = np.int64(0)  # with a Python constant, Numba would compile the path a second time
        factor, least = 0, total[0, 0]
        for step in range(len(growth) + 1):
            for which in range(len(factors)):
                if total[step, which] < least:
                    stop, factor, least = step, which, total[step, which]
        _path(problem, rows, targets, weights, rows[:0], targets[:0], weights[:0], stop, weight, own)
        out[place, :rank], out[place, rank:] = weight, factors[factor] * own


@_kernel
def _path(problem, rows, targets, weights, others, held_targets, held_weights, stop, chosen_weight, chosen):
    """Run conjugate gradients; return the loss of each step's best part on the other rows, for each factor of b.

    ``chosen`` is the part with the smallest of these losses at the first factor, one. Without other rows it is the last
    part, after ``stop`` steps.
    """
    basis, reach, metric, shapes, penalty, growth, sparsity, factors = problem
    size, rank = basis.shape
    scored, shares, held_shares = len(others) > 0, _shares(weights), _shares(held_weights)
    values, held_values = _room(shapes, rows), _room(shapes, others)
    slopes, moved = np.zeros(values.shape), np.zeros(values.shape)
    prior = penalty / max(weights.sum(), 1.0)
    network, gradient, latest = np.zeros(size), np.zeros(size), np.zeros(size)
    w_trial, w_best, w_move, w_direction = np.zeros(rank), np.zeros(rank), np.zeros(rank), np.zeros(rank)
    trial, best, move, direction = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size)
    w_old, old, w_new, new = np.zeros(rank), np.zeros(size), np.zeros(rank), np.zeros(size)
    support, losses, held = np.ones(size), np.full((len(growth) + 1, len(factors)), np.inf), np.zeros(len(factors))
    lowest, least, changed = np.inf, np.inf, True
    chosen_weight[:], chosen[:] = 0.0, 0.0
    for step in range(stop + 1):
        _parameters(basis, w_trial, trial, network)
        _forward(network, shapes, values)
        _slopes(network, shapes, values, slopes)
        loss = _gradient(shapes, values, slopes, targets, shares, latest)
        loss += 0.5 * prior * _inner(metric, w_trial, trial, w_trial, trial)
        better = loss < lowest
        if better:
            w_best[:], best[:], gradient[:] = w_trial, trial, latest
            lowest = loss
        if scored:
            if better or changed:
                for which in range(len(factors)):
                    for entry in range(size):
                        latest[entry] = factors[which] * best[entry]
                    _parameters(basis, w_best, latest, new)
                    _forward(new, shapes, held_values)
                    found = _loss(held_values, held_targets, held_shares)
                    held[which] = found if found == found else np.inf
            losses[step] = held
            if held[0] < least:
                least = held[0]
                chosen_weight[:], chosen[:] = w_best, best
        changed = False
        if step == stop:
            break
        if growth[step] > 0.0:
            changed = True
            wanted = math.ceil(growth[step] * sparsity)
            if _select(shapes, values, slopes, shares, prior, best, gradient, wanted, support):
                direction[:], w_direction[:] = 0.0, 0.0  # it was conjugate only for the old support
            best *= support
            move *= support
            lowest = np.inf
        if better:
            for entry in range(size):
                new[entry] = support[entry] * (gradient[entry] + prior * best[entry])
            for column in range(rank):
                total = 0.0
                for entry in range(size):
                    total += reach[column, entry] * gradient[entry]
                w_new[column] = total + prior * w_best[column]
            _turn(metric, w_new, new, w_old, old, w_direction, direction)
            descent = -_inner(metric, w_direction, direction, w_new, new)
            _shift(basis, w_direction, direction, latest)
            bend = _bend(network, latest, shapes, values, moved, shares)
            bend += prior * _inner(metric, w_direction, direction, w_direction, direction)
            length = descent / max(bend, _TINY)
            for entry in range(size):
                move[entry] = length * direction[entry]
            w_move[:] = length * w_direction
            w_old[:], old[:] = w_new, new
        else:
            move *= _BACKTRACK
            w_move *= _BACKTRACK
        for entry in range(size):
            trial[entry] = best[entry] + move[entry]
        w_trial[:] = w_best + w_move
    if not scored:
        chosen_weight[:], chosen[:] = w_best, best
    return losses


@_kernel
def _turn(metric, w_new, new, w_old, old, w_direction, direction):
    """Set the Polak–Ribière direction; steepest descent if that does not descend."""
    mixed = _inner(metric, w_new, new, w_new, new) - _inner(metric, w_new, new, w_old, old)
    beta = mixed / max(_inner(metric, w_old, old, w_old, old), _TINY)
    if not beta > 0.0:
        beta = 0.0
    for entry in range(len(new)):
        direction[entry] = beta * direction[entry] - new[entry]
    w_direction[:] = beta * w_direction - w_new
    if not -_inner(metric, w_direction, direction, w_new, new) > 0.0:
        for entry in range(len(new)):
            direction[entry] = -new[entry]
        w_direction[:] = -w_new


@_kernel
def _select(shapes, values, slopes, shares, prior, best, gradient, wanted, support):
    """Keep the entries whose optimum, each separately, would lower the loss most; return whether they changed."""
    gain = _curvature(shapes, values, slopes, shares, len(best))
    for entry in range(len(best)):
        curvature = gain[entry] + prior
        value = abs(best[entry] - (gradient[entry] + prior * best[entry]) / curvature) * math.sqrt(curvature)
        gain[entry] = value if value == value else 0.0
    changed, kept = False, 0
    level = _smallest(gain.copy(), len(gain) - wanted) if wanted > 0 else np.inf
    for above in range(2):  # entries above the level, then as many at the level as there is room for
        for entry in range(len(gain)):
            if above == 0:
                now = 1.0 if gain[entry] > level and wanted > 0 else 0.0
                kept += int(now)
                changed |= now != support[entry] and gain[entry] != level
                support[entry] = now if gain[entry] != level else support[entry]
            elif gain[entry] == level:
                now = 1.0 if kept < wanted else 0.0
                kept += int(now)
                changed |= now != support[entry]
                support[entry] = now
    return changed


@_kernel
def _smallest(values, place):
    """Return the k-th smallest number; reorders the input. NumPy's partition takes seconds to compile."""
    first, last = np.int64(0), len(values) - 1
    while first < last:
        pivot, low, high = values[(first + last) // 2], first, last
        while low <= high:
            while values[low] < pivot:
                low += 1
            while values[high] > pivot:
                high -= 1
            if low <= high:
                values[low], values[high] = values[high], values[low]
                low += 1
                high -= 1
        if place <= high:
            last = high
        elif place >= low:
            first = low
        else:
            return values[place]
    return values[place]


@_kernel
def _descend(basis, shapes, rows, targets, weights, weight, own, update):
    """Add minus the gradient in the basis at a personal part."""
    values, network, gradient = _room(shapes, rows), np.zeros(len(basis)), np.zeros(len(basis))
    slopes = np.zeros(values.shape)
    _parameters(basis, weight, own, network)
    _forward(network, shapes, values)
    _slopes(network, shapes, values, slopes)
    _gradient(shapes, values, slopes, targets, _shares(weights), gradient)
    for entry in range(len(basis)):
        for column in range(basis.shape[1]):
            update[entry, column] -= gradient[entry] * (weight[column] + (1.0 if column == 0 else 0.0))


@_kernel
def _room(shapes, rows):
    """Return a table with these inputs and room for the outputs of each layer."""
    values = np.zeros((len(rows), rows.shape[1] + shapes[:, 0].sum()))
    values[:, : rows.shape[1]] = rows
    return values


@_kernel
def _shares(weights):
    return weights / max(weights.sum(), 1.0)


@_kernel
def _shift(basis, weight, own, out):
    """Set ``out`` to U w + b."""
    for entry in range(len(basis)):
        total = own[entry]
        for column in range(basis.shape[1]):
            total += basis[entry, column] * weight[column]
        out[entry] = total


@_kernel
def _parameters(basis, weight, own, out):
    """Set ``out`` to the user's network: the basis' first column, plus the values of the personal part."""
    _shift(basis, weight, own, out)
    for entry in range(len(basis)):
        out[entry] += basis[entry, 0]


@_kernel
def _inner(metric, w_left, left, w_right, right):
    total = 0.0
    for entry in range(len(left)):
        total += left[entry] * right[entry]
    for row in range(len(w_left)):
        for column in range(len(w_right)):
            total += w_left[row] * metric[row, column] * w_right[column]
    return total


@_kernel
def _forward(network, shapes, values):
    start, before = 0, 0
    for layer in range(len(shapes)):
        units, inputs = shapes[layer, 0], shapes[layer, 1]
        after, biases = before + inputs, start + units * inputs
        for row in range(len(values)):
            given = values[row, before:after]
            for unit in range(units):
                matrix = network[start + unit * inputs : start + (unit + 1) * inputs]
                total = 0.0
                for j in range(inputs):
                    total += matrix[j] * given[j]
                total += network[biases + unit]
                values[row, after + unit] = math.tanh(total) if layer < len(shapes) - 1 else total
        start, before = biases + units, after


@_kernel
def _slopes(network, shapes, values, slopes):
    """Set the derivatives of the output with respect to every unit's pre-activation, in the columns of the unit."""
    start, before = len(network), values.shape[1] - 1
    slopes[:, before] = 1.0
    for layer in range(len(shapes) - 1, 0, -1):
        units, inputs = shapes[layer, 0], shapes[layer, 1]
        start, after = start - units * (inputs + 1), before
        before -= inputs
        for row in range(len(values)):
            below = slopes[row, before:after]
            below[:] = 0.0
            for unit in range(units):
                slope = slopes[row, after + unit]
                matrix = network[start + unit * inputs : start + (unit + 1) * inputs]
                for j in range(inputs):
                    below[j] += slope * matrix[j]
            for j in range(inputs):
                below[j] *= 1.0 - values[row, before + j] * values[row, before + j]


@_kernel
def _loss(values, targets, shares):
    total = 0.0
    for row in range(len(values)):
        residual = values[row, -1] - targets[row]
        total += residual * residual * shares[row]
    return 0.5 * total


@_kernel
def _gradient(shapes, values, slopes, targets, shares, out):
    """Set the gradient of half the mean squared error; return that loss."""
    out[:] = 0.0
    start, before = 0, 0
    for layer in range(len(shapes)):
        units, inputs = shapes[layer, 0], shapes[layer, 1]
        after, biases = before + inputs, start + units * inputs
        for row in range(len(values)):
            error = (values[row, -1] - targets[row]) * shares[row]
            given = values[row, before:after]
            for unit in range(units):
                delta = error * slopes[row, after + unit]
                matrix = out[start + unit * inputs : start + (unit + 1) * inputs]
                for j in range(inputs):
                    matrix[j] += delta * given[j]
                out[biases + unit] += delta
        start, before = biases + units, after
    return _loss(values, targets, shares)


@_kernel
def _curvature(shapes, values, slopes, shares, size):
    """Return the diagonal of the Gauss–Newton matrix: mean squared derivatives in each parameter."""
    out = np.zeros(size)
    start, before = 0, 0
    for layer in range(len(shapes)):
        units, inputs = shapes[layer, 0], shapes[layer, 1]
        after, biases = before + inputs, start + units * inputs
        for row in range(len(values)):
            given = values[row, before:after]
            for unit in range(units):
                square = slopes[row, after + unit] * slopes[row, after + unit] * shares[row]
                matrix = out[start + unit * inputs : start + (unit + 1) * inputs]
                for j in range(inputs):
                    matrix[j] += square * given[j] * given[j]
                out[biases + unit] += square
        start, before = biases + units, after
    return out


@_kernel
def _bend(network, change, shapes, values, moved, shares):
    """Return the mean square of how outputs change along a direction of the parameters."""
    start, before = 0, 0
    for layer in range(len(shapes)):
        units, inputs = shapes[layer, 0], shapes[layer, 1]
        after, biases = before + inputs, start + units * inputs
        for row in range(len(values)):
            given, shifted = values[row, before:after], moved[row, before:after]
            for unit in range(units):
                first = start + unit * inputs
                matrix, turned = network[first : first + inputs], change[first : first + inputs]
                total = 0.0
                for j in range(inputs):
                    total += matrix[j] * shifted[j] + turned[j] * given[j]
                total += change[biases + unit]
                if layer < len(shapes) - 1:
                    total *= 1.0 - values[row, after + unit] * values[row, after + unit]
                moved[row, after + unit] = total
        start, before = biases + units, after
    total = 0.0
    for row in range(len(values)):
        total += moved[row, -1] * moved[row, -1] * shares[row]
    return total
