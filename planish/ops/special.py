"""erf, erfc and log-gamma of float64 arrays, to about 1e-15, where NumPy has none.

The rational approximations and their ranges are fdlibm's s_erf.c and e_lgamma_r.c (Sun Microsystems, 1993).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_ERF_SMALL = ([1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
               -5.77027029648944159157e-03, -2.37630166566501626084e-05],
              [1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
               1.32494738004321644526e-04, -3.96022827877536812320e-06])
_ERF_NEAR_ONE = ([-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
                  3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
                  -2.16637559486879084300e-03],
                 [1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
                  1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02])
_ERFC_MIDDLE = ([-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01,
                 -6.23753324503260060396e+01, -1.62396669462573470355e+02, -1.84605092906711035994e+02,
                 -8.12874355063065934246e+01, -9.81432934416914548592e+00],
                [1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
                 6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02,
                 6.57024977031928170135e+00, -6.04244152148580987438e-02])
_ERFC_FAR = ([-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01,
              -1.60636384855821916062e+02, -6.37566443368389627722e+02, -1.02509513161107724954e+03,
              -4.83519191608651397019e+02],
             [1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
              3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02,
              -2.24409524465858183362e+01])
_ERF_OF_ONE = 8.45062911510467529297e-01


def _polynomial(coefficients: Sequence[float], x: np.ndarray) -> np.ndarray:
    """Lowest degree first."""
    total = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total *= x
        total += c
    return total


def _rational(pair: tuple[Sequence[float], Sequence[float]], x: np.ndarray) -> np.ndarray:
    return _polynomial(pair[0], x) / _polynomial(pair[1], x)


Piece = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]


def _by_range(x: np.ndarray, result: np.ndarray, *pieces: Piece) -> np.ndarray:
    """Fill `result` piece by piece: each function sees only the elements of its own range."""
    for chosen, function in pieces:
        where = np.flatnonzero(chosen)
        if where.size:
            result[where] = function(x[where])
    return result


def _erfc_tail(x: np.ndarray) -> np.ndarray:
    """erfc for x >= 1.25; exp(-x^2) is split so that the square's rounding does not grow."""
    head = (x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    ratio = _by_range(1 / (x * x), np.empty_like(x), (x < 1 / 0.35, lambda s: _rational(_ERFC_MIDDLE, s)),
                      (x >= 1 / 0.35, lambda s: _rational(_ERFC_FAR, s)))
    return np.exp(-head * head - 0.5625) * np.exp((head - x) * (head + x) + ratio) / x


def erf(x: np.ndarray) -> np.ndarray:
    """Of a flat array."""
    a = np.abs(x)
    return _by_range(
        x, np.where(np.isnan(x), x, np.copysign(1.0, x)),
        (a < 0.84375, lambda v: v + v * _rational(_ERF_SMALL, v * v)),
        ((a >= 0.84375) & (a < 1.25),
         lambda v: np.copysign(_ERF_OF_ONE + _rational(_ERF_NEAR_ONE, np.abs(v) - 1), v)),
        ((a >= 1.25) & (a < 6), lambda v: np.copysign(1 - _erfc_tail(np.abs(v)), v)))


def _erfc_small(x: np.ndarray) -> np.ndarray:
    r = x * _rational(_ERF_SMALL, x * x)
    return np.where(x < 0.25, 1 - (x + r), 0.5 - (x - 0.5 + r))


def _erfc_near_one(x: np.ndarray) -> np.ndarray:
    p = _rational(_ERF_NEAR_ONE, np.abs(x) - 1)
    return np.where(x > 0, 1 - _ERF_OF_ONE - p, 1 + (_ERF_OF_ONE + p))


def erfc(x: np.ndarray) -> np.ndarray:
    """Of a flat array."""
    a = np.abs(x)
    return _by_range(
        x, np.where(np.isnan(x), x, np.where(x > 0, 0.0, 2.0)),
        (a < 0.84375, _erfc_small),
        ((a >= 0.84375) & (a < 1.25), _erfc_near_one),
        ((x >= 1.25) & (x < 28), _erfc_tail),
        ((x <= -1.25) & (x > -6), lambda v: 2 - _erfc_tail(-v)))


_GAMMA_NEAR_TWO = ([7.72156649015328655494e-02, 6.73523010531292681824e-02, 7.38555086081402883957e-03,
                    1.19270763183362067845e-03, 2.20862790713908385557e-04, 2.52144565451257326939e-05],
                   [3.22467033424113591611e-01, 2.05808084325167332806e-02, 2.89051383673415629091e-03,
                    5.10069792153511336608e-04, 1.08011567247583939954e-04, 4.48640949618915160150e-05])
_GAMMA_MINIMUM = (1.46163214496836224576e+00, -1.21486290535849611461e-01, -3.63867699703950536541e-18)
_GAMMA_NEAR_MINIMUM = ([4.83836122723810047042e-01, -3.27885410759859649565e-02, 6.10053870246291332635e-03,
                        -1.40346469989232843813e-03, 3.15632070903625950361e-04],
                       [-1.47587722994593911752e-01, 1.79706750811820387126e-02, -3.68452016781138256760e-03,
                        8.81081882437654011382e-04, -3.12754168375120860518e-04],
                       [6.46249402391333854778e-02, -1.03142241298341437450e-02, 2.25964780900612472250e-03,
                        -5.38595305356740546715e-04, 3.35529192635519073543e-04])
_GAMMA_NEAR_ONE = ([-7.72156649015328655494e-02, 6.32827064025093366517e-01, 1.45492250137234768737e+00,
                    9.77717527963372745603e-01, 2.28963728064692451092e-01, 1.33810918536787660377e-02],
                   [1.0, 2.45597793713041134822e+00, 2.12848976379893395361e+00, 7.69285150456672783825e-01,
                    1.04222645593369134254e-01, 3.21709242282423911810e-03])
_GAMMA_TO_EIGHT = ([-7.72156649015328655494e-02, 2.14982415960608852501e-01, 3.25778796408930981787e-01,
                    1.46350472652464452805e-01, 2.66422703033638609560e-02, 1.84028451407337715652e-03,
                    3.19475326584100867617e-05],
                   [1.0, 1.39200533467621045958e+00, 7.21935547567138069525e-01, 1.71933865632803078993e-01,
                    1.86459191715652901344e-02, 7.77942496381893596434e-04, 7.32668430744625636189e-06])
_GAMMA_FAR = (4.18938533204672725052e-01,
              [8.33333333333329678849e-02, -2.77777777728775536470e-03, 7.93650558643019558500e-04,
               -5.95187557450339963135e-04, 8.36339918996282139126e-04, -1.63092934096575273989e-03])


def lgamma(x: np.ndarray) -> np.ndarray:
    """log |gamma(x)| of a flat array; infinite at 0 and the negative integers."""
    pole = (x <= 0) & (np.floor(x) == x)
    return _by_range(
        x, np.where(np.isnan(x), x, np.inf),
        ((x > 0) & (x < 2), _lgamma_below_two),
        ((x >= 2) & (x < 8), _lgamma_to_eight),
        ((x >= 8) & (x < np.inf), _lgamma_far),
        ((x < 0) & (x > -2.0 ** -70), lambda x: -np.log(-x)),
        ((x <= -2.0 ** -70) & ~pole, _lgamma_mirrored))


def _lgamma_mirrored(x: np.ndarray) -> np.ndarray:
    a = -x
    return np.log(np.pi / (np.abs(np.sin(np.pi * (a - np.rint(a)))) * a)) - lgamma(a)


def _lgamma_below_two(x: np.ndarray) -> np.ndarray:
    low = x <= 0.9  # there, gamma(x) = gamma(x + 1) / x
    up = np.where(low, x + 1, x)
    near_two = np.where(low, 1 - x, 2 - x)
    z = near_two * near_two
    odd, even = (_polynomial(c, z) for c in _GAMMA_NEAR_TWO)
    at_two = near_two * odd + z * even - 0.5 * near_two
    least, value, rest = _GAMMA_MINIMUM
    d = np.where(low, x - (least - 1), x - least)
    w = d * d * d
    p1, p2, p3 = (_polynomial(c, w) for c in _GAMMA_NEAR_MINIMUM)
    at_least = value + (d * d * p1 - (rest - w * (p2 + d * p3)))
    e = np.where(low, x, x - 1)
    at_one = -0.5 * e + e * _rational(_GAMMA_NEAR_ONE, e)
    y = np.where(up >= 1.7316, at_two, np.where(up >= np.where(low, 1.23164, 1.23), at_least, at_one))
    return np.where(low, y - np.log(np.where(low, x, 1)), y)


def _lgamma_to_eight(x: np.ndarray) -> np.ndarray:
    whole = np.floor(x)
    y = x - whole
    result = 0.5 * y + y * _rational(_GAMMA_TO_EIGHT, y)
    factors = np.ones_like(x)
    for k in range(2, 7):
        factors = factors * np.where(k < whole, y + k, 1)
    return result + np.log(factors)


def _lgamma_far(x: np.ndarray) -> np.ndarray:
    z = 1 / x
    series = _GAMMA_FAR[0] + z * _polynomial(_GAMMA_FAR[1], z * z)
    return (x - 0.5) * (np.log(x) - 1) + np.where(x < 2.0 ** 58, series, 0)


CHUNK = 1 << 14  # elements worked on at a time: their float64 intermediates stay in cache


def in_float64(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """`function` of flat float64 arrays, for arrays of any float dtype and shape."""
    def meaning(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(-1)
        result = np.empty_like(flat)
        for start in range(0, flat.size, CHUNK):
            result[start:start + CHUNK] = function(flat[start:start + CHUNK].astype(np.float64))
        return result.reshape(x.shape)
    return meaning
