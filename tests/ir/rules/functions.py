"""Small functions, without their braces, in which rules fire."""

from __future__ import annotations

ONE = """
  arg %x: f32[3,4]
  param %a: f32[4,6]
  %y: f32[3,6] = linear(%x, %a)
  return %y
"""
ONE_T = """
  arg %x: f32[3,4]
  param %a: f32[6,4]
  %y: f32[3,6] = linear(%x, %a) {transposed=true}
  return %y
"""
ONE_BF16 = ONE.replace("f32", "bf16")
ONE_BF16_T = ONE_T.replace("f32", "bf16")
TWO = """
  arg %x: f32[2,3,4]
  param %a: f32[4,6]
  param %b: f32[4,5]
  %y: f32[2,3,6] = linear(%x, %a)
  %z: f32[2,3,5] = linear(%x, %b)
  return %y, %z
"""
TWO_T = """
  arg %x: bf16[3,4]
  param %a: f32[6,4]
  param %b: f32[5,4]
  %y: f32[3,6] = linear(%x, %a) {transposed=true}
  %z: f32[3,5] = linear(%x, %b) {transposed=true}
  return %y, %z
"""
THREE = """
  arg %x: f32[4]
  param %a: bf16[4,6]
  param %b: bf16[4,5]
  param %c: bf16[4,1]
  %y: f32[6] = linear(%x, %a)
  %z: f32[5] = linear(%x, %b)
  %u: f32[1] = linear(%x, %c)
  return %u, %y, %z
"""
THREE_T = """
  arg %x: f16[3,4]
  param %a: f16[6,4]
  param %b: f16[5,4]
  param %c: f16[1,4]
  %y: f16[3,6] = linear(%x, %a) {transposed=true}
  %z: f16[3,5] = linear(%x, %b) {transposed=true}
  %u: f16[3,1] = linear(%x, %c) {transposed=true}
  return %u, %y, %z
"""
BIASED = """
  arg %x: f32[3,4]
  param %a: f32[4,6]
  param %b: f32[4,5]
  param %c: f32[4,2]
  param %p: bf16[6]
  param %q: bf16[5]
  param %r: bf16[2]
  %y: f32[3,6] = linear(%x, %a, bias=%p)
  %z: f32[3,5] = linear(%x, %b, bias=%q)
  %u: f32[3,2] = linear(%x, %c, bias=%r)
  return %u, %y, %z
"""
RESIDUAL = """
  arg %x: bf16[3,8]
  arg %r: bf16[3,8]
  param %w: f32[8]
  %s: bf16[3,8] = lax.add(%x, %r)
  %n: bf16[3,8] = rms_norm(%s, %w) {eps=1e-05, plus_one=true}
  %o: bf16[3,8] = lax.mul(%s, %n)
  return %o
"""
NORM = """
  arg %x: f32[3,4]
  param %w: f32[4]
  param %a: f32[4,6]
  %h: f32[3,4] = rms_norm(%x, %w) {eps=1e-05, plus_one=true}
  %y: f32[3,6] = linear(%h, %a)
  return %y
"""
NORM_T = NORM.replace("f32[4,6]", "f32[6,4]").replace(
    "linear(%h, %a)", "linear(%h, %a) {transposed=true}"
)
QKV = """
  arg %x: f32[2,3,40]
  arg %p: i32[2,3]
  param %f: f32[2]
  %q: f32[2,3,16], %k: f32[2,3,8], %v: f32[2,3,16] = split(%x) {axis=-1, sizes=(16, 8, 16)}
  %qh: f32[2,3,4,4] = lax.reshape(%q) {dimensions=none, new_sizes=(2, 3, 4, 4), sharding=none}
  %kh: f32[2,3,2,4] = lax.reshape(%k) {dimensions=none, new_sizes=(2, 3, 2, 4), sharding=none}
  %qr: f32[2,3,4,4] = rope(%qh, %p, %f) {interleaved=true, scale=1.5}
  %kr: f32[2,3,2,4] = rope(%kh, %p, %f) {interleaved=true, scale=1.5}
  return %kr, %v, %qr
"""
ATTENTION = """
  arg %q: bf16[2,3,4,8]
  arg %k: bf16[2,12,2,8]
  arg %v: bf16[2,12,2,6]
  arg %p: i32[2,3]
  %o: bf16[2,3,4,6] = attention(%q, %k, %v, positions=%p) {causal=true, scale=0.5, window=5}
  return %o
"""
ATTENTION_BHSD = ATTENTION.replace("[2,12,2,", "[2,2,12,").replace(
    "{causal", '{layout="bhsd", causal'
)
LOOP = """
  arg %c: f32[3]
  arg %k: f32[3]
  param %w: f32[6,3]
  %y: f32[3], %rows: f32[6,3] = scan(%k, %c, %w) {carry=1, consts=1, length=6} {
    region 0 {
      arg %const: f32[3]
      arg %state: f32[3]
      arg %row: f32[3]
      %s: f32[3] = lax.mul(%state, %row)
      %t: f32[3] = lax.sub(%s, %const)
      return %t, %s
    }
  }
  return %y, %rows
"""
BRANCHES = """
  arg %i: i32[]
  arg %x: f32[2,4]
  param %w: f32[4]
  %y: f32[2,4] = cond(%i, %x, %w) {
    region 0 {
      arg %a: f32[2,4]
      arg %b: f32[4]
      %n: f32[2,4] = rms_norm(%a, %b) {eps=1e-05}
      %e: f32[2,4] = lax.exp(%n)
      %o: f32[2,4] = lax.neg(%e)
      return %o
    }
    region 1 {
      arg %a: f32[2,4]
      arg %b: f32[4]
      %d: f32[2,4] = lax.abs(%a)
      %m: f32[2,4] = rms_norm(%a, %b) {eps=1e-05}
      %g: f32[2,4] = lax.exp(%m)
      %o: f32[2,4] = lax.add(%d, %g)
      return %o
    }
  }
  return %y
"""
CHAIN = """
  arg %x: f32[3,4]
  arg %k: f32[]
  %a: f32[3,4] = lax.exp(%x)
  %b: f32[3,4] = lax.mul(%a, %a)
  %c: f32[3,4] = lax.sub(%b, %x)
  return %c
"""
NORM_LINEAR = """
  arg %x: f32[3,4]
  param %w: f32[4]
  param %a: f32[4,6]
  %h: f32[3,4] = layer_norm(%x, %w)
  %y: f32[3,6] = linear(%h, %a)
  return %y
"""
MLP = """
  arg %x: f32[3,4]
  param %g: f32[4,6]
  param %u: f32[4,6]
  param %d: f32[6,4]
  %p: f32[3,6] = linear(%x, %g)
  %q: f32[3,6] = linear(%x, %u)
  %s: f32[3,6] = swiglu(%p, %q)
  %y: f32[3,4] = linear(%s, %d)
  return %y
"""
ACTIVATED = """
  arg %x: f32[3,4]
  param %a: f32[4,6]
  %h: f32[3,6] = linear(%x, %a)
  %y: f32[3,6] = activation(%h) {kind="gelu"}
  return %y
"""
CACHED = """
  arg %n: f32[2,1,2,4]
  arg %m: f32[3,2,1,2,4]
  arg %at: i32[2]
  state %k: f32[3,2,5,2,4]
  state %v: f32[3,2,5,2,4]
  %o: f32[2,1,2,4], %new_k: f32[3,2,5,2,4], %new_v: f32[3,2,5,2,4] = scan(%at, %n, %m, %k, %v)
    {carry=1, consts=1, length=3} {
    region 0 {
      arg %start: i32[2]
      arg %q: f32[2,1,2,4]
      arg %piece: f32[2,1,2,4]
      arg %key: f32[2,5,2,4]
      arg %value: f32[2,5,2,4]
      %uk: f32[2,5,2,4] = update_cache(%key, %q, %start)
      %uv: f32[2,5,2,4] = update_cache(%value, %piece, %start)
      %a: f32[2,1,2,4] = attention(%q, %uk, %uv) {scale=0.5}
      return %a, %uk, %uv
    }
  }
  return %o as "o", %new_k as "k" -> %k, %new_v as "v" -> %v
"""
