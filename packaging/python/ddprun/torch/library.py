"""ddprun/torch/library.py - libddpgroup's calls, and PyTorch's types and operators as its codes"""
import ctypes as c

import ddpgroup
import torch
import torch.distributed as dist

lib, Err = ddpgroup.library, ddpgroup.Err
_TYPES = {getattr(torch, name): code for name, code in ddpgroup.TYPES.items()}
_U8 = ddpgroup.TYPES["uint8"]
_RedOp = dist.ReduceOp.RedOpType
_OPS = {getattr(_RedOp, name.upper()): code for name, code in ddpgroup.OPS.items()}
# what True + True and the like are
_BOOL_OPS = {**_OPS, _RedOp.SUM: _OPS[_RedOp.BOR], _RedOp.PRODUCT: _OPS[_RedOp.BAND],
             _RedOp.MAX: _OPS[_RedOp.BOR], _RedOp.MIN: _OPS[_RedOp.BAND]}

_P, _N, _I = c.c_void_p, c.c_size_t, c.c_int
for _name, _args in {
    "ibarrier": [], "ibroadcast": [_P, _N, _I, _I], "ireduce": [_P, _P, _N, _I, _I, _I],
    "iall_reduce": [_P, _N, _I, _I], "igather": [_P, _P, _N, _I, _I],
    "iscatter": [_P, _P, _N, _I, _I], "iall_gather": [_P, _P, _N, _I],
    "iall_gatherv": [_P, _P, _P, _I], "ireduce_scatter": [_P, _P, _N, _I, _I],
    "ireduce_scatterv": [_P, _P, _P, _I, _I], "iall_to_all": [_P, _P, _N, _I],
    "iall_to_allv": [_P, _P, _P, _P, _I], "isend": [_P, _N, _I, _I],
    "irecv": [_P, _N, _I, _I], "irecv_any": [_P, _N, _I, _P],
}.items():
    _function = getattr(lib, "ddp_" + _name)
    _function.argtypes, _function.restype = [_P, *_args, _P], _P
lib.ddp_wait_for.argtypes = [_P, c.c_int64, _P, _P]
lib.ddp_explain_wait.argtypes, lib.ddp_explain_wait.restype = [_P, c.c_double, _P], None


def code_of(tensor):
    """The library's element type, and bytes of an element where it has none."""
    code = _TYPES.get(tensor.dtype)
    return (code, 1) if code is not None else (_U8, tensor.element_size())


def reduction(tensor, op):
    kind = op.op if hasattr(op, "op") else op
    code = _U8 if tensor.dtype == torch.bool else _TYPES.get(tensor.dtype)
    number = (_BOOL_OPS if tensor.dtype == torch.bool else _OPS).get(kind)
    if code is None or number is None or (tensor.dtype == torch.bool and kind == _RedOp.AVG):
        raise TypeError(f"ddp: no {kind} of {tensor.dtype}: "
                        f"{', '.join(map(str, _TYPES))} and torch.bool can be reduced")
    return code, number


def flat_of(tensor):
    """Its elements in a row: itself, or a copy."""
    if tensor.device.type != "cpu":
        raise ValueError(f"ddp: a tensor on {tensor.device}: this backend moves CPU tensors; "
                         "use \"nccl\" for GPUs, or copy it with .cpu() first")
    if tensor.layout != torch.strided:
        raise ValueError(f"ddp: a tensor of layout {tensor.layout}: call .to_dense() first")
    if tensor.is_conj() or tensor.is_neg():  # views: the numbers in memory are others
        return tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


def check_output(tensor):
    """Results cannot be copied to a tensor whose elements lie on each other."""
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise ValueError(f"ddp: elements of the output share memory (strides {tensor.stride()}): "
                         "call .contiguous() first")


def joined(tensors):
    return torch.cat([flat_of(t).detach().reshape(-1) for t in tensors])


def sizes(tensors):
    return [t.numel() for t in tensors]


def array(counts, scale):
    return (_N * len(counts))(*(n * scale for n in counts))
