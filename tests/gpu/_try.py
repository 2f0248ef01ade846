import numpy as np, hearth, time, sys
SRC=r'''
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n){ int i=blockIdx.x*blockDim.x+threadIdx.x; if(i<n) y[i]=a*x[i]+y[i]; }
'''
t=time.time()
with hearth.connect(sys.argv[1]) as node:
    gpu=node.device(0)
    print(gpu, gpu.properties.name)
    mod=gpu.RawModule(code=SRC)
    saxpy=mod.get_function("saxpy")
    x=gpu.asarray(np.arange(1<<20,dtype=np.float32)); y=gpu.zeros(1<<20,np.float32)
    saxpy((4096,),(256,),(np.float32(2),x,y,np.int32(1<<20)))
    print(y.get()[:4], time.time()-t)
    with gpu.profile() as p:
        saxpy((4096,),(256,),(np.float32(2),x,y,np.int32(1<<20)))
    print(p.device_ns, np.asarray(y)[:4])
    print(gpu.memory_usage())
    try:
        saxpy((0,),(256,),(np.float32(2),x,y,np.int32(1<<20)))
        gpu.synchronize()
    except hearth.HearthError as e: print(type(e), e)
    try:
        saxpy((5,),(2000,),(np.float32(2),x,y,np.int32(1<<20)))
        gpu.synchronize()
    except hearth.HearthError as e: print(type(e), e)
    try:
        gpu.RawModule(code="__global__ void f( {").compile()
    except hearth.HearthError as e: print(type(e), e)
    group=hearth.Group(node.devices)
    xs=[d.asarray(np.full(1000,i+1,np.float32)) for i,d in enumerate(node.devices)]
    try:
        group.all_reduce(xs,op="mean"); print(xs[0].get()[:3],xs[1].get()[:3])
    except Exception as e: print("group", type(e), e)
    one=gpu.asarray(np.arange(4,dtype=np.float32)); z=gpu.zeros(4,np.float32)
    N=20000
    t=time.perf_counter()
    for _ in range(N): saxpy((1,),(4,),(np.float32(2),one,z,np.int32(4)))
    a=time.perf_counter()-t; gpu.synchronize(); b=time.perf_counter()-t
    print("launch client us",a/N*1e6,"total us",b/N*1e6)
    ts=[]
    for _ in range(300):
        t=time.perf_counter(); saxpy((1,),(4,),(np.float32(2),one,z,np.int32(4))); gpu.synchronize(); ts.append(time.perf_counter()-t)
    print("launch+sync us", np.median(ts)*1e6)
