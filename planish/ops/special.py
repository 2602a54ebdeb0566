"""erf, erfc and log-gamma of float64 arrays, to about 1e-15, where NumPy has none.

The rational approximations and their ranges are fdlibm's s_erf.c and e_lgamma_r.c (Sun Microsystems, 1993).
"""
from __future__ import annotations

from collections.abc import Sequence

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


def _erfc_tail(x: np.ndarray) -> np.ndarray:
    """erfc for x >= 1.25; exp(-x^2) is split so that the square's rounding does not grow."""
    head = (x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    s = 1 / (x * x)
    ratio = np.where(x < 1 / 0.35, _rational(_ERFC_MIDDLE, s), _rational(_ERFC_FAR, s))
    return np.exp(-head * head - 0.5625) * np.exp((head - x) * (head + x) + ratio) / x


def erf(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    a = np.abs(x)
    small = a < 0.84375
    xs = np.where(small, x, 0)
    y = xs + xs * _rational(_ERF_SMALL, xs * xs)
    near = (a >= 0.84375) & (a < 1.25)
    y = np.where(near, np.copysign(_ERF_OF_ONE + _rational(_ERF_NEAR_ONE, np.where(near, a - 1, 0)), x), y)
    far = a >= 1.25
    y = np.where(far, np.copysign(1 - _erfc_tail(np.where(far, np.minimum(a, 6), 6.0)), x), y)
    return np.where(np.isnan(x), x, np.where(a >= 6, np.copysign(1.0, x), y))


def erfc(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    a = np.abs(x)
    xs = np.where(a < 0.84375, x, 0)
    r = xs * _rational(_ERF_SMALL, xs * xs)
    y = np.where(xs < 0.25, 1 - (xs + r), 0.5 - (xs - 0.5 + r))
    near = (a >= 0.84375) & (a < 1.25)
    p = _rational(_ERF_NEAR_ONE, np.where(near, a - 1, 0))
    y = np.where(near, np.where(x > 0, 1 - _ERF_OF_ONE - p, 1 + (_ERF_OF_ONE + p)), y)
    far = a >= 1.25
    tail = _erfc_tail(np.where(far, np.minimum(a, 28), 28.0))
    y = np.where(far, np.where(x > 0, tail, 2 - tail), y)
    return np.where(np.isnan(x), x, np.where(x >= 28, 0.0, np.where(x <= -6, 2.0, y)))
